"""The third stage: the fast engine itself says how hard a prompt is, with one digit that is all it can say.

The digit is asked for in a conversation of our own: an instruction, six answered examples, then the prompt as the next user turn.
So the prompt is fenced by the chat template, whose control tokens no text can write, and by the grammar ``[0-9]``: whatever the
prompt says to the scorer, one digit comes out. Of its first token we take the probabilities of all ten digits, not the sampled
one (G-Eval, Liu et al. 2023), and calibrate their expected value (Platt 1999) on labelled prompts.

The conversation up to the prompt is always the same, so the engine has it in its prefix cache; per call only the end of the last
block, the cut prompt and the head of the answer are computed.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from tandem.errors import EngineFailure, SetupError
from tandem.orchestration.port import EnginePort
from tandem.routing.decision import Outcome
from tandem.routing.settings import ScorerSettings
from tandem.routing.stages import Cutoff, Declined, Opinion, Question
from tandem.scheduling.step_time import StepTimeModel
from tandem.text.chat_template import ChatTemplate
from tandem.text.messages import ChatMessage
from tandem.text.tokenizer import Tokenizer
from tandem.types import CacheHints, EngineRequest, Guide, GuideType, RequestId, SamplingParams, SequenceDelta

_log = logging.getLogger(__name__)

# With the default model the conversation before the prompt is five whole KV blocks long: nothing of it has to be computed again.
_INSTRUCTION = "Rate how hard each request is, from 0 (easy) to 9 (hard). Answer with one digit and nothing else."
_EXAMPLES = (
    ("Translate to French: good morning", "1"),
    ("Prove that the square root of 2 is irrational", "9"),
    ("What is the capital of Peru?", "1"),
    ("Plan a database migration without downtime, with risks", "8"),
    ("Fix the spelling: I recieved it", "0"),
    ("Work out which of the four suspects lied", "8"),
)
_REMEDY = "set stages.scorer.enabled to false in the rules file"
_DIGITS = "0123456789"
_MIN_TEXT_TOKENS = 8
_TAIL_SHARE = 0.3
_TOP = 20  # log-probabilities that are asked for; the digits that are not among them count as nothing
_HEADROOM = 0.85  # of the budget may be planned: predictions are means
_MAX_TENANTS = 256
_PROBE_EVERY = 8
# ms: fixed, per request in flight, per token to compute; the first calls correct it.
_FIRST_COST_MS = (20.0, 4.0, 2.0)


class ScorerPrompt:
    """The conversation around a prompt, as token ids. Immutable and thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises: SetupError when the model can't be asked this way."""
        if tokenizer.chat_template is None:
            raise SetupError(f"the scorer needs a model with a chat template; {_REMEDY}")
        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer.chat_template, tokenizer)
        digits = [tokenizer.encode(digit, add_special_tokens=False) for digit in _DIGITS]
        if any(len(ids) != 1 for ids in digits):
            raise SetupError(f"the scorer needs a tokenizer with one token per digit; {_REMEDY}")
        self.digit_ids = tuple(ids[0] for ids in digits)
        one, two = self._encode("a"), self._encode("Z")
        self.prefix_ids = tuple(a for a, b in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False)))
        """What all conversations begin with."""
        self.num_around_tokens = len(one) - len(self.prefix_ids)
        """What follows the text, and about one token of it."""

    def encode(self, text: str, max_text_tokens: int) -> tuple[int, ...]:
        """The whole conversation with head and tail of ``text``, in one line."""
        line = " ".join(text.split())
        ids = self._tokenizer.encode(line, add_special_tokens=False)
        if len(ids) > max_text_tokens:
            num_tail = int(max_text_tokens * _TAIL_SHARE)
            # Cut characters can be left at the borders; they are dropped.
            parts = (ids[: max_text_tokens - num_tail], ids[len(ids) - num_tail :])
            line = " … ".join(self._tokenizer.decode(part).strip("\ufffd") for part in parts)
        return self._encode(line)

    def _encode(self, text: str) -> tuple[int, ...]:
        messages = [ChatMessage("system", _INSTRUCTION)]
        for request, digit in _EXAMPLES:
            messages += [ChatMessage("user", request), ChatMessage("assistant", digit)]
        return self._template.encode((*messages, ChatMessage("user", text)))


class ScorerStage:
    """Thread-safe. Each tenant has its own cached conversation, so that nobody's prompt can be found in another's time."""

    name = "scorer"

    def __init__(
        self,
        settings: ScorerSettings,
        prompt: ScorerPrompt,
        port: EnginePort,
        block_size: int,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``block_size``: tokens per KV block; whole blocks are cached."""
        self._settings = settings
        self._prompt = prompt
        self._port = port
        self._clock_s = clock_s
        self._num_cached = len(prompt.prefix_ids) // block_size * block_size
        self._numbers = itertools.count()
        self._lock = threading.Lock()  # guards all below
        self._cost = StepTimeModel(*_FIRST_COST_MS)
        self._warm: OrderedDict[str, bool] = OrderedDict()  # tenant -> False while its conversation is being computed
        self._num_declined = 0

    def ask(self, question: Question, budget_ms: float, cutoff: Cutoff) -> Opinion:
        if not question.text:
            raise Declined(Outcome.SKIPPED)
        self._check_warm(question.tenant)
        load = question.load.get(self._settings.engine)
        if load is not None and load.num_waiting > 0:
            raise Declined(Outcome.NO_BUDGET, "the engine has a queue")
        num_in_flight = 0 if load is None else load.num_in_flight
        ids = self._prompt.encode(question.text, self._num_text_tokens(budget_ms, num_in_flight))
        delta = self._call(ids, question.tenant, num_in_flight, cutoff)
        raw = expected_digit(delta, self._prompt.digit_ids) / 9.0
        score = 1.0 / (1.0 + math.exp(-(self._settings.slope * raw + self._settings.intercept)))
        return Opinion(score, "digit", f"hard={9 * raw:.1f}/9,p={score:.2f}")

    def _num_text_tokens(self, budget_ms: float, num_in_flight: int) -> int:
        """As much of the text as the budget allows. Raises: Declined."""
        num_fixed = len(self._prompt.prefix_ids) - self._num_cached + self._prompt.num_around_tokens
        with self._lock:
            fixed_ms = self._cost.step_ms(num_fixed, num_in_flight)
            per_token_ms = max(self._cost.coefficients_ms[2], 1e-3)
            num_tokens = int((budget_ms * _HEADROOM - fixed_ms) / per_token_ms)
            if num_tokens < _MIN_TEXT_TOKENS:
                self._num_declined += 1
                # Now and then one is tried all the same, or a bad spell would be believed for ever.
                if self._num_declined % _PROBE_EVERY:
                    raise Declined(Outcome.NO_BUDGET, f"needs {fixed_ms + _MIN_TEXT_TOKENS * per_token_ms:.0f} ms")
        return max(min(num_tokens, self._settings.max_text_tokens), _MIN_TEXT_TOKENS)

    def _check_warm(self, tenant: str) -> None:
        """Raises: Declined while the engine does not have the conversation of this tenant; the first time that is set going."""
        with self._lock:
            if self._warm.get(tenant):
                self._warm.move_to_end(tenant)
                return
            is_new = tenant not in self._warm
            self._warm[tenant] = False
            while len(self._warm) > _MAX_TENANTS:
                self._warm.popitem(last=False)
        if is_new:
            threading.Thread(target=self._warm_up, args=(tenant,), name="tandem-scorer-warmup", daemon=True).start()
        raise Declined(Outcome.NO_BUDGET, "warming up")

    def _warm_up(self, tenant: str) -> None:
        is_done = False
        try:
            self._call(self._prompt.encode("Hello", _MIN_TEXT_TOKENS), tenant, 0, Cutoff(), learns=False)
            is_done = True
        except Exception:
            _log.exception("the scorer could not warm up; the next request tries again")
        with self._lock:
            if is_done and tenant in self._warm:
                self._warm[tenant] = True
            else:
                self._warm.pop(tenant, None)

    def _call(self, ids: tuple[int, ...], tenant: str, num_in_flight: int, cutoff: Cutoff, *, learns: bool = True) -> SequenceDelta:
        """The delta with the digit. Raises: EngineFailure; whatever the engine raises."""
        engine, child_id = self._settings.engine, f"scorer.{next(self._numbers)}"
        request = EngineRequest(
            RequestId(child_id),
            ids,
            SamplingParams(max_tokens=1, return_log_probs=True, top_logprobs=_TOP),
            CacheHints(f"{tenant}/tandem-scorer"),
            Guide(GuideType.REGEX, "[0-9]"),
        )
        cutoff.on_cut(lambda: self._port.stop(engine, child_id))
        started_s = self._clock_s()
        found: SequenceDelta | None = None
        for delta in self._port.generate(engine, request, streaming=False):
            if delta.token_ids:
                found = delta
        if found is None:
            raise EngineFailure(f"{engine} gave the scorer no digit")
        with self._lock:
            if found.num_cached_tokens < self._num_cached and learns:
                self._warm.pop(tenant, None)  # its blocks were given up for others
            if learns:
                self._cost.observe(len(ids) - found.num_cached_tokens, num_in_flight, (self._clock_s() - started_s) * 1e3)
        return found


def expected_digit(delta: SequenceDelta, digit_ids: tuple[int, ...]) -> float:
    """0 to 9, by the probabilities of the digits; the digit itself when none is among the likeliest. Raises: EngineFailure."""
    log_probs = dict(zip(delta.top[0].ids, delta.top[0].log_probs, strict=True)) if delta.top else {}
    weights = [math.exp(log_probs.get(token_id, -math.inf)) for token_id in digit_ids]
    total = sum(weights)
    if total > 0.0:
        return sum(digit * weight for digit, weight in enumerate(weights)) / total
    try:
        return float(digit_ids.index(delta.token_ids[0]))
    except ValueError:
        raise EngineFailure("the scorer's engine gave something else than a digit") from None
