"""A request on its way through the engine, and its sequences: tokens, block table, what sampling remembers of them."""

from __future__ import annotations

import numpy as np

from tandem.engine.kv_cache import BlockTable
from tandem.engine.processors import Processors
from tandem.engine.rng import TokenRandom, fresh_seed
from tandem.engine.words import WordList
from tandem.guided.compiler import Grammar
from tandem.guided.matcher import GuideMatcher
from tandem.models.decoder import LongArray
from tandem.types import EngineRequest, FinishReason, Guide, RequestId, SamplingParams

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy decoding: dividing by it would leave nothing but the highest logit, or overflow."""


class Sequence:
    """One completion of a request. Changed by the engine thread only.

    ``token_ids[:num_tokens]`` are prompt and completion; the KV of the first ``num_computed_tokens`` of them is in the blocks of
    ``table``. The scheduler lets the computed tokens catch up with the tokens; when they have, the next token is sampled. A
    preempted sequence goes back to 0 computed tokens and an empty table, and loses nothing else. ``matcher`` stands behind the last
    token of a guided sequence; ``num_ahead`` counts the tokens of the last step: the sampled one and those its guide forces.
    """

    __slots__ = (
        "can_jump",
        "cum_log_prob",
        "index",
        "is_finished",
        "is_greedy",
        "is_plain_greedy",
        "matcher",
        "num_ahead",
        "num_computed_tokens",
        "num_seats",
        "num_tokens",
        "output_ids",
        "params",
        "processors",
        "random",
        "request",
        "stop_words",
        "table",
        "token_ids",
    )

    def __init__(self, request: Request, index: int, max_blocks: int, num_seats: int) -> None:
        self.request = request
        self.params = request.params
        self.index = index
        # Sequence slots it takes while it runs: the first sequence holds those of its siblings until they fork off it.
        self.num_seats = num_seats
        num_prompt_tokens = len(request.prompt_ids)
        self.token_ids: LongArray = np.zeros(num_prompt_tokens + request.max_tokens, np.int64)
        self.token_ids[:num_prompt_tokens] = request.prompt_ids
        self.num_tokens = num_prompt_tokens
        self.num_computed_tokens = 0
        self.table = BlockTable(max_blocks, request.cache, num_prompt_tokens)
        self.output_ids: list[int] = []
        self.cum_log_prob = 0.0
        self.is_finished = False
        self.processors = Processors(request.params, request.prompt_ids, request.max_tokens)
        self.stop_words = WordList(request.params.stop_words)
        self.random = TokenRandom(request.seed, index)
        self.is_greedy = request.params.is_greedy or request.params.temperature < GREEDY_BELOW
        self.is_plain_greedy = self.is_greedy and self.processors.is_none and request.guide is None
        self.matcher: GuideMatcher | None = None if request.grammar is None else request.grammar.matcher()
        self.num_ahead = 0
        # With log-probabilities each forced token gets a step, and so a number, of its own.
        self.can_jump = request.has_jump_forward and not (request.params.return_log_probs or request.params.top_logprobs)

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_ids)

    def append(self, token: int) -> FinishReason | None:
        """Take a sampled token that is not the end token; returns why the sequence ends with it, if it does."""
        self.token_ids[self.num_tokens] = token
        self.num_tokens += 1
        self.output_ids.append(token)
        self.processors.add(token)
        if self.stop_words and self.stop_words.is_completed_by(self.output_ids):
            # A stop word that min_tokens forbids is banned before sampling, so no length is checked here.
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.output_ids) == self.request.max_tokens else None


class Request:
    """One accepted or about to be accepted request. Built in the caller's thread, then owned by the engine thread."""

    __slots__ = (
        "accepted_at_s",
        "arrival",
        "cache",
        "end_id",
        "grammar",
        "guide",
        "has_jump_forward",
        "has_started",
        "max_tokens",
        "num_cached_tokens",
        "num_unfinished",
        "params",
        "prompt_ids",
        "request_id",
        "seed",
        "sequences",
    )

    def __init__(self, request: EngineRequest, params: SamplingParams, max_blocks: int, *, has_jump_forward: bool = True) -> None:
        """``params`` are those of ``request`` after checking: max_tokens clamped to the context, end_id -1 turned into None."""
        self.has_jump_forward = has_jump_forward
        self.request_id: RequestId = request.request_id
        self.prompt_ids = request.prompt_ids
        self.cache = request.cache
        self.guide: Guide | None = request.guide
        self.grammar: Grammar | None = None  # of the guide, once compiled
        self.num_cached_tokens: int | None = None  # set at the first admission; what is reused after a preemption is its own work
        self.params = params
        self.max_tokens = params.max_tokens
        self.end_id = params.end_id
        self.seed = fresh_seed() if params.seed is None else params.seed
        self.accepted_at_s = 0.0
        self.has_started = False  # admitted at least once
        self.arrival = 0  # counts accepted requests; set when the engine takes it
        self.num_unfinished = params.num_return_sequences
        self.sequences = [Sequence(self, 0, max_blocks, params.num_return_sequences)]

    @property
    def waits_for_grammar(self) -> bool:
        return self.guide is not None and self.grammar is None

    def use_grammar(self, grammar: Grammar) -> None:
        """Take the compiled guide, before the request enters the engine."""
        self.grammar = grammar
        self.sequences[0].matcher = grammar.matcher()

    @property
    def has_blocks(self) -> bool:
        """False while the request waits. Any thread may look; by the time it acts, the engine thread may have admitted it."""
        return any(sequence.table.num_blocks for sequence in self.sequences)

    def add_siblings(self, max_blocks: int) -> list[Sequence]:
        """Make the other sequences once the prompt is computed; from here on each takes one slot of its own."""
        assert len(self.sequences) == 1
        self.sequences[0].num_seats = 1
        siblings = [Sequence(self, index, max_blocks, 1) for index in range(1, self.params.num_return_sequences)]
        self.sequences += siblings
        return siblings
