"""An engine port that plays a script by the tensorrt_llm contract, and builders for router requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tandem.orchestration.config import EngineInfo, RouterConfig
from tandem.orchestration.port import RouterChunk, RouterRequest, TextSampling
from tandem.orchestration.service import RouterService
from tandem.routing.features import extract_features
from tandem.routing.rules_file import load_policy
from tandem.text.tokenizer import Tokenizer
from tandem.types import EngineRequest, FinishReason, RequestId, SequenceDelta, TokenLogProbs
from tests.text_factories import make_tokenizer

TOKENIZER = make_tokenizer()
BYTES_ONLY = make_tokenizer(num_merged=0)
MAX_SEQ_LEN = 64
POLICY = load_policy()


def ids_of(text: str, tokenizer: Tokenizer = TOKENIZER) -> tuple[int, ...]:
    return tokenizer.encode(text, add_special_tokens=False)


@dataclass
class ScriptedPort:
    """Answers sequence ``i`` with ``scripts[i]``; a script shorter than the limit ends as if by the end token.

    ``chunk`` tokens come per streamed delta. ``before_delta(n)`` runs before delta n (counted over all sequences) and may raise or
    cancel. A stop ends the request with one empty last delta, as the contract says. ``merge_end``: the end token's empty delta is
    merged into the delta before it, as a port may that joins waiting responses.
    """

    scripts: Sequence[Sequence[int]]
    chunk: int = 1
    before_delta: Callable[[int], None] = lambda number: None
    merge_end: bool = False
    log_prob: float = -0.5
    calls: list[tuple[str, EngineRequest, bool]] = field(default_factory=list)
    stops: list[tuple[str, str]] = field(default_factory=list)
    num_delivered: int = 0
    is_drained: bool = False

    def generate(self, engine: str, request: EngineRequest, *, streaming: bool) -> Iterator[SequenceDelta]:
        self.calls.append((engine, request, streaming))
        deltas = list(self._streamed(request) if streaming else self._whole(request))
        for number, (index, tokens) in enumerate(deltas):
            self.before_delta(number)
            if any(child == request.request_id for _, child in self.stops):
                yield self._delta(request, index, (), is_last=True)
                break
            self.num_delivered += 1
            yield self._delta(request, index, tokens, is_last=number == len(deltas) - 1)
        self.is_drained = True

    def stop(self, engine: str, request_id: str) -> None:
        self.stops.append((engine, request_id))

    def _whole(self, request: EngineRequest) -> Iterator[tuple[int, tuple[int, ...]]]:
        for index in range(request.sampling.num_return_sequences):
            yield index, tuple(self.scripts[index][: request.sampling.max_tokens])

    def _streamed(self, request: EngineRequest) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The sequences take turns, delta by delta."""
        limit = request.sampling.max_tokens
        queues = []
        for script in self.scripts[: request.sampling.num_return_sequences]:
            tokens = tuple(script[:limit])
            parts = [tokens[start : start + self.chunk] for start in range(0, len(tokens), self.chunk)]
            if len(tokens) < limit and not (self.merge_end and parts):
                parts.append(())
            queues.append(parts)
        while any(queues):
            for index, parts in enumerate(queues):
                if parts:
                    yield index, parts.pop(0)

    def _delta(self, request: EngineRequest, index: int, tokens: tuple[int, ...], *, is_last: bool) -> SequenceDelta:
        sampling = request.sampling
        return SequenceDelta(
            request_id=RequestId(request.request_id),
            sequence_index=index,
            token_ids=tokens,
            log_probs=(self.log_prob,) * len(tokens) if sampling.return_log_probs else (),
            top=tuple(
                TokenLogProbs((token, 5)[: sampling.top_logprobs], (self.log_prob, float("-inf"))[: sampling.top_logprobs])
                for token in tokens
            )
            if sampling.top_logprobs
            else (),
            is_last=is_last,
        )


def make_config(tokenizer: Tokenizer = TOKENIZER, **changes: Any) -> RouterConfig:
    engines = tuple(EngineInfo(name, MAX_SEQ_LEN, tokenizer) for name in ("fast_int4", "fast_int8", "slow"))
    return RouterConfig(**{"engines": engines, "default_max_tokens": 40, **changes})


def make_service(port: ScriptedPort, tokenizer: Tokenizer = TOKENIZER) -> RouterService:
    return RouterService(make_config(tokenizer), POLICY, port)


def make_request(
    *,
    request_id: str = "q1",
    batch_index: int = 0,
    prompt_ids: tuple[int, ...] = (5, 6, 7),
    text: str = "Hello",
    path: str = "auto",
    num_turns: int = 1,
    session: str = "",
    is_tool_result: bool = False,
    **sampling: Any,
) -> RouterRequest:
    """Keyword arguments that are not named here are fields of TextSampling."""
    features = extract_features(
        text, num_prompt_tokens=len(prompt_ids), num_turns=num_turns, path=path, session=session, is_tool_result=is_tool_result
    )
    return RouterRequest(request_id, batch_index, prompt_ids, features.to_json(), TextSampling(**sampling))


def run(port: ScriptedPort, tokenizer: Tokenizer = TOKENIZER, **request: Any) -> list[RouterChunk]:
    """All chunks of one request; checks what holds for every answer."""
    service = make_service(port, tokenizer)
    chunks: list[RouterChunk] = []
    service.handle(make_request(**request), chunks.append)
    assert service.num_running == 0
    assert port.is_drained or not port.calls
    check_answer(chunks)
    return chunks


def check_answer(chunks: Sequence[RouterChunk]) -> None:
    """Per sequence exactly one finish reason, in its last chunk; the token count never falls; no partial character."""
    by_sequence: dict[int, list[RouterChunk]] = {}
    for chunk in chunks:
        by_sequence.setdefault(chunk.sequence_index, []).append(chunk)
    for of_one in by_sequence.values():
        assert [chunk.finish_reason is not None for chunk in of_one] == [False] * (len(of_one) - 1) + [True]
        counts = [chunk.num_output_tokens for chunk in of_one]
        assert counts == sorted(counts)
    assert len({(chunk.path, chunk.engine, chunk.decision, chunk.num_input_tokens) for chunk in chunks}) <= 1


def text_of(chunks: Sequence[RouterChunk], sequence_index: int = 0) -> str:
    return "".join(chunk.text_output for chunk in chunks if chunk.sequence_index == sequence_index)


def last_of(chunks: Sequence[RouterChunk], sequence_index: int = 0) -> tuple[FinishReason | None, int]:
    """Finish reason and number of tokens of one sequence."""
    last = [chunk for chunk in chunks if chunk.sequence_index == sequence_index][-1]
    return last.finish_reason, last.num_output_tokens
