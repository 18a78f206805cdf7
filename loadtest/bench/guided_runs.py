"""Guided answers of a real engine: as fast as free text, valid at any temperature, and undisturbed by other people's bombs."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from llguidance import LLTokenizer

from loadtest.bench import Progress
from loadtest.bench.guided_bombs import bombs
from loadtest.bench.guided_schemas import SCHEMAS
from loadtest.bench.turns import median_ratio
from tandem.engine import AsyncEngine, EngineConfig, LLMEngine
from tandem.errors import InvalidRequest
from tandem.guided.capabilities import CAPABILITIES
from tandem.guided.check import check_guide
from tandem.guided.compiler import GrammarCompiler
from tandem.guided.limits import GuideLimits
from tandem.models.decoder import Decoder
from tandem.text.tokenizer import Tokenizer
from tandem.types import FORCED_ENTROPY, EngineRequest, FinishReason, Guide, GuideType, RequestId, SamplingParams, SequenceDelta

_MAX_TOKENS = 200
_BATCH = 4
_STREAM_TOKENS = 120
_HARMLESS = Guide(GuideType.CHOICE, '["yes", "no"]')


class GuidedRuns:
    """Owns an engine over ``decoder``; every run leaves it idle."""

    def __init__(self, decoder: Decoder, vocabulary: LLTokenizer, engine_dir: Path) -> None:
        self._decoder = decoder
        self._vocabulary = vocabulary
        grammars = GrammarCompiler(vocabulary)
        self._tokenizer = Tokenizer.load(engine_dir)
        config = EngineConfig(max_num_seqs=32, max_num_batched_tokens=96, has_prefix_cache=True)
        self._engine = LLMEngine(decoder, config, grammars=grammars)
        self._numbers = itertools.count()
        for schema in SCHEMAS.values():
            grammars.compile(_guide(schema))

    def compare_with_free_text(self, *, num_rounds: int, progress: Progress) -> dict[str, Any]:
        """Tokens per second of all schemas, four at once, over free text of the same lengths, in turns."""
        guided_s, free_s, num_forced, num_tokens = [], [], 0, 0
        for round_number in range(num_rounds + 1):
            lengths, seconds, forced = self._run_guided()
            free = self._run_free(lengths)
            progress(f"guided {sum(lengths) / seconds:.0f} tok/s, free text of the same length {sum(lengths) / free:.0f} tok/s")
            if round_number > 0:  # the first one warms up
                guided_s.append(seconds)
                free_s.append(free)
                num_forced, num_tokens = num_forced + forced, num_tokens + sum(lengths)
        return {
            "tok_s_ratio_vs_free": round(median_ratio(free_s, guided_s), 3),
            "tok_s": round(sum(lengths) / median(guided_s), 1),
            "own_schemas_forced_token_share": round(num_forced / num_tokens, 4),
        }

    def sample(self, *, num_samples: int, progress: Progress) -> dict[str, Any]:
        """Answers at temperature 1.5, held against jsonschema; those cut by the limit are counted apart."""
        import jsonschema  # only where tests are set up

        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        counts = {"valid": 0, "invalid": 0, "cut": 0}
        for name, schema in SCHEMAS.items():
            validator = jsonschema.Draft202012Validator(schema, format_checker=checker)
            requests = [
                self._request(name, guide=_guide(schema), temperature=1.5, top_p=1.0, seed=seed, max_tokens=_MAX_TOKENS)
                for seed in range(num_samples)
            ]
            for text, reason in self._texts(requests):
                if reason is not FinishReason.STOP:
                    counts["cut"] += 1
                    continue
                is_valid = validator.is_valid(json.loads(text))
                counts["valid" if is_valid else "invalid"] += 1
                if not is_valid:
                    progress(f"{name}: an answer is not valid: {text}")
            progress(f"samples: {name} done, {counts}")
        return {"schemas": len(SCHEMAS), "per_schema": num_samples, **counts}

    def compare_beside_bombs(self, *, num_rounds: int, progress: Progress) -> float:
        """p99 of the gaps between tokens of four streams while bombs are sent, in turns with as many harmless guides."""
        plain, disturbed = [], []
        for round_number in range(num_rounds + 1):
            quiet_ms, loud_ms = self._gaps_p99_ms(with_bombs=False), self._gaps_p99_ms(with_bombs=True)
            progress(f"TPOT p99 {quiet_ms:.1f} ms alone, {loud_ms:.1f} ms beside {len(bombs())} bombs")
            if round_number > 0:
                plain.append(quiet_ms)
                disturbed.append(loud_ms)
        return round(median_ratio(disturbed, plain), 3)

    def _gaps_p99_ms(self, *, with_bombs: bool) -> float:
        grammars = GrammarCompiler(self._vocabulary)
        engine = AsyncEngine(LLMEngine(self._decoder, EngineConfig(max_num_seqs=8), grammars=grammars))
        streams = [_Stream() for _ in range(_BATCH)]
        passed = [guide for guide in bombs().values() if _passes(guide)]
        guides = passed if with_bombs else [_HARMLESS] * len(passed)
        with _bomber() if with_bombs else nullcontext(), _sending(engine, self._request, streams, guides):
            for stream in streams:
                engine.submit(self._request("a story", max_tokens=_STREAM_TOKENS, end_id=None), stream)
            for stream in streams:
                stream.ended.wait()
        engine.shutdown()
        grammars.close()
        return float(np.quantile([gap for stream in streams for gap in stream.gaps_ms()], 0.99))

    def _run_guided(self) -> tuple[list[int], float, int]:
        """Lengths, seconds and forced tokens of one answer per schema, greedy."""
        requests = [self._request(name, guide=_guide(schema), max_tokens=80) for name, schema in SCHEMAS.items()]
        started = time.perf_counter()
        deltas = self._run(requests, max_at_once=_BATCH)
        seconds = time.perf_counter() - started
        lengths = {request.request_id: 0 for request in requests}
        for delta in deltas:
            lengths[delta.request_id] += len(delta.token_ids)
        forced = sum(entropy == FORCED_ENTROPY for delta in deltas for entropy in delta.entropies)
        return list(lengths.values()), seconds, forced

    def _run_free(self, lengths: Sequence[int]) -> float:
        requests = [self._request(name, max_tokens=length, end_id=None) for name, length in zip(SCHEMAS, lengths, strict=True)]
        started = time.perf_counter()
        self._run(requests, max_at_once=_BATCH)
        return time.perf_counter() - started

    def _texts(self, requests: list[EngineRequest]) -> list[tuple[str, FinishReason | None]]:
        ids: dict[str, list[int]] = {request.request_id: [] for request in requests}
        reasons: dict[str, FinishReason | None] = {}
        for delta in self._run(requests, max_at_once=32):
            assert delta.error is None, delta.error
            ids[delta.request_id] += delta.token_ids
            reasons[delta.request_id] = delta.finish_reason
        return [(self._tokenizer.decode(tuple(tokens)), reasons[request_id]) for request_id, tokens in ids.items()]

    def _run(self, requests: list[EngineRequest], *, max_at_once: int) -> list[SequenceDelta]:
        left, deltas = list(reversed(requests)), []
        num_open = 0
        while left or num_open:
            while left and num_open < max_at_once:
                self._engine.add(self._engine.prepare(left.pop()))
                num_open += 1
            step = self._engine.step()
            num_open -= sum(delta.is_last for delta in step)
            deltas += step
        return deltas

    def _request(self, what: str, *, guide: Guide | None = None, end_id: int | None = -2, **sampling: Any) -> EngineRequest:
        """``end_id`` -2: the tokenizer's own."""
        text = f"<|im_start|>user\nWrite JSON for: {what}<|im_end|>\n<|im_start|>assistant\n"
        prompt = self._tokenizer.encode(text, add_special_tokens=False, field="prompt")
        end = self._tokenizer.eos_id if end_id == -2 else end_id
        params = SamplingParams(end_id=end, **sampling)
        return EngineRequest(RequestId(str(next(self._numbers))), prompt, params, guide=guide)


class _Stream:
    """A sink that notes when tokens came."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self._times: list[float] = []

    def __call__(self, deltas: Sequence[SequenceDelta]) -> None:
        self._times += [time.perf_counter()] * any(delta.token_ids for delta in deltas)
        if deltas[-1].is_last:
            self.ended.set()

    def gaps_ms(self) -> list[float]:
        return [(later - earlier) * 1e3 for earlier, later in itertools.pairwise(self._times)]


@contextmanager
def _bomber() -> Iterator[None]:
    """While it is open, a router's gate, in a process of its own, gets one bomb after another."""
    gate = subprocess.Popen([sys.executable, "-m", "loadtest.bench.guided_bombs"], stdin=subprocess.PIPE, text=True)
    time.sleep(1.0)  # it has its imports behind it
    assert gate.stdin is not None
    gate.stdin.write("go\n")
    gate.stdin.close()
    try:
        yield
    finally:
        gate.kill()
        gate.wait()


@contextmanager
def _sending(engine: AsyncEngine, make: Any, streams: Sequence[_Stream], guides: Sequence[Guide]) -> Iterator[None]:
    """While it is open, the engine gets a short request for each guide until the streams have ended."""

    def send() -> None:
        for guide in guides:
            if all(stream.ended.is_set() for stream in streams):
                return
            engine.submit(make("a bomb", guide=guide, max_tokens=1), _Stream())
            time.sleep(0.2)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        yield
    finally:
        sender.join()


def _passes(guide: Guide) -> bool:
    try:
        check_guide(guide.type.value, guide.text, CAPABILITIES["cpu"], GuideLimits())
    except InvalidRequest:
        return False
    return True


def _guide(schema: Any) -> Guide:
    return Guide(GuideType.JSON_SCHEMA, json.dumps(schema))
