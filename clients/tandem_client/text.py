"""What the text model ``tandem`` is asked and what it answers, free of any transport.

Field names are the tensor names of ``tandem.protocol``; None and empty tuples mean "not given": no tensor is sent and the
router's own default holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tandem_client.guide import Guide


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the text is generated; ranges are checked by whoever reads user input and again by the router."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    num_return_sequences: int | None = None
    stop_words: tuple[str, ...] = ()
    ignore_eos: bool | None = None
    return_log_probs: bool | None = None
    top_logprobs: int | None = None
    logit_bias_ids: tuple[int, ...] = ()
    logit_bias_values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One request to ``tandem``: either ``prompts`` (raw text, one row each) or ``messages`` (a JSON array), never both.

    ``path`` is auto, fast or slow. ``task``, ``api_path`` and ``source`` are what the routing rules may look at, ``threshold`` is
    the win rate from which on the slow path answers, ``slo_*`` what the answer shall keep; ``session`` names the conversation.
    ``path`` is auto, fast or slow. ``task``, ``api_path`` and ``source`` are what the routing rules may look at, ``threshold`` is
    the win rate from which on the slow path answers, ``slo_*`` what the answer shall keep; ``session`` names the conversation.
    Computed prompts are reused between requests of one ``cache_salt``. ``tools`` is a JSON array for the chat template; ``guide``
    is what the answer must match.
    """

    request_id: str
    prompts: tuple[str, ...] = ()
    messages: str | None = None
    tools: str | None = None
    guide: Guide | None = None
    path: str = "auto"
    task: str | None = None
    api_path: str | None = None
    source: str | None = None
    threshold: float | None = None
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None
    session: str | None = None
    stream: bool = False
    cache_salt: str | None = None
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        assert bool(self.prompts) != (self.messages is not None), "exactly one of prompts and messages"

    @property
    def num_rows(self) -> int:
        """Rows of the Triton batch; each row has its own prompt."""
        return len(self.prompts) or 1

    @property
    def num_sequences(self) -> int:
        """Answers expected over all rows."""
        return self.num_rows * (self.sampling.num_return_sequences or 1)


@dataclass(frozen=True, slots=True)
class TextChunk:
    """One response of ``tandem``. ``text`` holds whole characters only.

    ``finish_reason`` is "" until the last chunk of a sequence, then stop, length or cancelled. ``num_output_tokens`` counts
    the sequence's tokens so far. ``log_probs_content`` is a JSON array or "". ``decision_record``: see ``tandem.protocol.ROUTER``.
    """

    text: str
    finish_reason: str
    batch_index: int
    sequence_index: int
    num_input_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    log_probs_content: str
    path: str
    engine: str
    decision: str
    decision_record: str = ""
