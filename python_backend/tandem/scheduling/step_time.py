"""How long one engine step takes, learned online: a base, so much per decode token, so much per prefill token."""

from __future__ import annotations

_FORGET = 0.995
_FLOOR_MS = 1e-3


class StepTimeModel:
    """``ms = base + decode · num_decode_tokens + prefill · num_prefill_tokens``, by recursive least squares with forgetting.

    Starts from the coefficients given and moves as steps are observed; coefficients never fall below 0 in what is answered.
    Memory and time per step are constant. Not thread-safe.
    """

    def __init__(self, base_ms: float = 12.0, decode_ms: float = 2.0, prefill_ms: float = 2.0) -> None:
        self._theta = [base_ms, decode_ms, prefill_ms]
        # Inverse of the weighted normal matrix; large values let the first steps move the coefficients quickly.
        self._p = [[100.0 if row == column else 0.0 for column in range(3)] for row in range(3)]

    @property
    def coefficients_ms(self) -> tuple[float, float, float]:
        """Base, per decode token, per prefill token."""
        base, decode, prefill = (max(value, 0.0) for value in self._theta)
        return base, decode, prefill

    def observe(self, num_prefill_tokens: int, num_decode_tokens: int, step_ms: float) -> None:
        x = (1.0, float(num_decode_tokens), float(num_prefill_tokens))
        p_x = [sum(row[i] * x[i] for i in range(3)) for row in self._p]
        gain_denominator = _FORGET + sum(x[i] * p_x[i] for i in range(3))
        error = step_ms - sum(self._theta[i] * x[i] for i in range(3))
        gain = [value / gain_denominator for value in p_x]
        self._theta = [self._theta[i] + gain[i] * error for i in range(3)]
        # Steps that are all alike would let the matrix grow without bound in the directions that they do not show.
        if sum(self._p[i][i] for i in range(3)) < 1e6:
            self._p = [[(self._p[i][j] - gain[i] * p_x[j]) / _FORGET for j in range(3)] for i in range(3)]
        else:
            self._p = [[self._p[i][j] - gain[i] * p_x[j] for j in range(3)] for i in range(3)]

    def step_ms(self, num_prefill_tokens: int, num_decode_tokens: int) -> float:
        base, decode, prefill = self.coefficients_ms
        return max(base + decode * num_decode_tokens + prefill * num_prefill_tokens, _FLOOR_MS)

    def prefill_ms(self, num_tokens: int, tokens_per_step: int) -> float:
        """To compute ``num_tokens`` of a prompt when each step takes ``tokens_per_step`` of them and decodes little else."""
        base, _, prefill = self.coefficients_ms
        return max(num_tokens * prefill + -(-num_tokens // tokens_per_step) * base, _FLOOR_MS)
