"""A discrete-event engine: the real waiting queue, scheduler and KV cache, a step-time model instead of the forward pass.

Nothing is computed, so a trace of hours runs in seconds or minutes, and every run of one input gives the same figures. What is left
out: sampling (an answer has the length the trace says), and every effect on time other than those of the step-time model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.engine.kv_cache import KvCache
from tandem.engine.scheduler import ScheduledBatch, Scheduler
from tandem.engine.sequence import Request
from tandem.engine.waiting import WaitingQueue
from tandem.types import EngineRequest, RequestId, SamplingParams

BLOCK_SIZE = 32


@dataclass(frozen=True, slots=True)
class StepTime:
    """Milliseconds of one step: a base, per token that is decoded, per token of a prompt. Fitted, see loadtest.bench.schedule."""

    base_ms: float
    decode_ms: float
    prefill_ms: float

    def of(self, num_decode_tokens: int, num_prefill_tokens: int) -> float:
        return self.base_ms + self.decode_ms * num_decode_tokens + self.prefill_ms * num_prefill_tokens


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Of the simulated engine; the names are those of the engine's configuration."""

    max_num_seqs: int = 16
    max_num_batched_tokens: int = 24
    num_kv_tokens: int = 16384
    max_seq_len: int = 8192


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace: when it comes, the length of its prompt and of its answer in tokens, and its limit."""

    at_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int


@dataclass(slots=True)
class Served:
    """What became of an arrival, in seconds of simulated time. ``start_s``: the first chunk of its prompt is computed."""

    arrival: Arrival
    start_s: float = -1.0
    first_token_s: float = -1.0
    end_s: float = -1.0

    @property
    def wait_s(self) -> float:
        """Before anything of it is computed."""
        return self.start_s - self.arrival.at_s

    @property
    def ttft_s(self) -> float:
        return self.first_token_s - self.arrival.at_s

    @property
    def e2e_s(self) -> float:
        return self.end_s - self.arrival.at_s

    @property
    def norm_latency_s(self) -> float:
        """End to end per output token."""
        return self.e2e_s / self.arrival.num_output_tokens


class SimulatedEngine:
    """Steps the scheduler over a list of arrivals, under the policy of the queue given. Single use."""

    def __init__(self, limits: EngineLimits, step_time: StepTime, queue: WaitingQueue) -> None:
        self._limits = limits
        self._step_time = step_time
        self._now_s = 0.0
        self._queue = queue
        self._scheduler = Scheduler(
            KvCache(limits.num_kv_tokens // BLOCK_SIZE, BLOCK_SIZE, has_prefix_cache=False),
            self._queue,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
        )
        self._served: dict[Request, Served] = {}
        self._num_arrived = 0

    @property
    def now_s(self) -> float:
        return self._now_s

    def run(self, arrivals: Sequence[Arrival]) -> list[Served]:
        """All of them, in the order given, which is that of their times. Returns when the last one has ended."""
        served = [Served(arrival) for arrival in arrivals]
        position = 0
        while position < len(served) or self._scheduler.has_work:
            if not self._scheduler.has_work:
                self._now_s = max(self._now_s, served[position].arrival.at_s)
            while position < len(served) and served[position].arrival.at_s <= self._now_s:
                self.add(served[position])
                position += 1
            self.step()
        return served

    def fill(self, arrivals: Sequence[Arrival]) -> list[Served]:
        """Let them all come now, and run no step."""
        served = [Served(arrival) for arrival in arrivals]
        for one in served:
            self.add(one)
        return served

    def add(self, served: Served) -> None:
        """A request comes now."""
        arrival = served.arrival
        params = SamplingParams(max_tokens=arrival.max_tokens)
        prompt = (0,) * arrival.num_prompt_tokens
        blocks = -(-self._limits.max_seq_len // BLOCK_SIZE)
        request = Request(EngineRequest(RequestId(str(self._num_arrived)), prompt, params), params, blocks)
        request.arrival = self._num_arrived
        self._num_arrived += 1
        self._served[request] = served
        self._scheduler.add(request.sequences[0])

    @property
    def scheduler(self) -> Scheduler:
        """For measurements of its own; what it plans must be given to :meth:`take`."""
        return self._scheduler

    def step(self) -> list[Served]:
        """One step; returns the requests that ended with it."""
        return self.take(self._scheduler.schedule())

    def take(self, batch: ScheduledBatch) -> list[Served]:
        """Let the planned step happen."""
        started_s = self._now_s
        num_decodes = sum(1 for num_tokens in batch.num_tokens if num_tokens == 1)
        num_prefill = sum(batch.num_tokens) - num_decodes
        step_ms = self._step_time.of(num_decodes, num_prefill)
        self._now_s += step_ms / 1e3
        ended = []
        for sequence, num_tokens in zip(batch.sequences, batch.num_tokens, strict=True):
            served = self._served[sequence.request]
            if served.start_s < 0.0:
                served.start_s = started_s
            sequence.num_computed_tokens += num_tokens
            if sequence.num_computed_tokens < sequence.num_tokens:
                continue
            if served.first_token_s < 0.0:
                served.first_token_s = self._now_s
            sequence.num_tokens += 1
            sequence.output_ids.append(0)
            if len(sequence.output_ids) >= served.arrival.num_output_tokens:
                served.end_s = self._now_s
                self._scheduler.remove(sequence, is_complete=True)
                del self._served[sequence.request]
                sequence.request.sequences.clear()
                ended.append(served)
        self._queue.note_step(num_prefill, num_decodes, step_ms)
        return ended
