"""Every tensor of every Tandem model, once: name, data type, shape, optional or not.

``config.pbtxt`` files are rendered from these tables and a test holds the committed files against them. The engine tables
are the contract of TensorRT-LLM's Triton backend 1.2.1 (``tensorrt_llm`` model); what we add is in the ``*_EXTENSIONS`` tables.
Shapes leave out the batch dimension. ``reshape=()`` means: on the wire ``[batch, 1]``, in the model ``[batch]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class DType(str, Enum):
    """Triton data types by their wire names; ``pbtxt`` gives the name used in config.pbtxt."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT64 = "UINT64"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    STRING = "BYTES"

    @property
    def pbtxt(self) -> str:
        return f"TYPE_{self.name}"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor as Triton's configuration states it."""

    name: str
    dtype: DType
    dims: tuple[int, ...]
    optional: bool = False
    reshape: tuple[int, ...] | None = None
    ragged: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The tensors of one Triton model."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def input(self, name: str) -> TensorSpec:
        return next(spec for spec in self.inputs if spec.name == name)

    def output(self, name: str) -> TensorSpec:
        return next(spec for spec in self.outputs if spec.name == name)


TANDEM_MODEL = "tandem"
PREPROCESSING_MODEL = "preprocessing"
ROUTER_MODEL = "router"
ROUTE_CLASSIFIER_MODEL = "route_classifier"
ENGINE_MODELS = ("fast_int4", "fast_int8", "slow")

# --- engines: fast_int4, fast_int8, slow ---------------------------------------------------------------------------------

ENGINE_CONTRACT_INPUTS: tuple[TensorSpec, ...] = (
    TensorSpec("input_ids", DType.INT32, (-1,), optional=True, ragged=True),
    TensorSpec("encoder_input_features", DType.FP16, (-1, -1), optional=True, ragged=True),
    TensorSpec("encoder_output_lengths", DType.INT32, (1,), optional=True, reshape=()),
    TensorSpec("input_lengths", DType.INT32, (1,), reshape=()),
    TensorSpec("request_output_len", DType.INT32, (1,), reshape=()),
    TensorSpec("num_return_sequences", DType.INT32, (1,), optional=True, reshape=()),
    TensorSpec("draft_input_ids", DType.INT32, (-1,), optional=True, ragged=True),
    TensorSpec("decoder_input_ids", DType.INT32, (-1,), optional=True, ragged=True),
    TensorSpec("decoder_input_lengths", DType.INT32, (1,), optional=True, reshape=()),
    TensorSpec("draft_logits", DType.FP32, (-1, -1), optional=True, ragged=True),
    TensorSpec("draft_acceptance_threshold", DType.FP32, (1,), optional=True, reshape=()),
    TensorSpec("end_id", DType.INT32, (1,), optional=True, reshape=()),
    TensorSpec("pad_id", DType.INT32, (1,), optional=True, reshape=()),
    TensorSpec("stop_words_list", DType.INT32, (2, -1), optional=True, ragged=True),
    TensorSpec("bad_words_list", DType.INT32, (2, -1), optional=True, ragged=True),
    TensorSpec("embedding_bias", DType.FP32, (-1,), optional=True, ragged=True),
    TensorSpec("beam_width", DType.INT32, (1,), optional=True, reshape=()),
    TensorSpec("temperature", DType.FP32, (1,), optional=True, reshape=()),
    TensorSpec("runtime_top_k", DType.INT32, (1,), optional=True, reshape=()),
    TensorSpec("runtime_top_p", DType.FP32, (1,), optional=True, reshape=()),
    TensorSpec("runtime_top_p_min", DType.FP32, (1,), optional=True, reshape=()),
    TensorSpec("runtime_top_p_decay", DType.FP32, (1,), optional=True, reshape=()),
    TensorSpec("runtime_top_p_reset_ids", DType.INT32, (1,), optional=True, reshape=()),
    TensorSpec("len_penalty", DType.FP32, (1,), optional=True, reshape=()),
    TensorSpec("early_stopping", DType.BOOL, (1,), optional=True, reshape=()),
    TensorSpec("repetition_penalty", DType.FP32, (1,), optional=True, reshape=()),
    TensorSpec("min_tokens", DType.INT32, (1,), optional=True, reshape=()),
    TensorSpec("beam_search_diversity_rate", DType.FP32, (1,), optional=True, reshape=()),
    TensorSpec("presence_penalty", DType.FP32, (1,), optional=True, reshape=()),
    TensorSpec("frequency_penalty", DType.FP32, (1,), optional=True, reshape=()),
    TensorSpec("seed", DType.UINT64, (1,), optional=True, reshape=()),
    TensorSpec("return_log_probs", DType.BOOL, (1,), optional=True, reshape=()),
    TensorSpec("return_context_logits", DType.BOOL, (1,), optional=True, reshape=()),
    TensorSpec("return_generation_logits", DType.BOOL, (1,), optional=True, reshape=()),
    TensorSpec("return_perf_metrics", DType.BOOL, (1,), optional=True, reshape=()),
    TensorSpec("return_num_input_tokens", DType.BOOL, (1,), optional=True, reshape=()),
    TensorSpec("return_num_output_tokens", DType.BOOL, (1,), optional=True, reshape=()),
    TensorSpec("exclude_input_in_output", DType.BOOL, (1,), optional=True, reshape=()),
    TensorSpec("stop", DType.BOOL, (1,), optional=True, reshape=()),
    TensorSpec("streaming", DType.BOOL, (1,), optional=True, reshape=()),
    TensorSpec("prompt_embedding_table", DType.FP16, (-1, -1), optional=True, ragged=True),
    TensorSpec("prompt_table_extra_ids", DType.UINT64, (-1,), optional=True, ragged=True),
    TensorSpec("prompt_vocab_size", DType.INT32, (1,), optional=True, reshape=()),
    TensorSpec("cross_attention_mask", DType.BOOL, (-1, -1), optional=True, ragged=True),
    TensorSpec("mrope_rotary_cos_sin", DType.FP32, (-1,), optional=True),
    TensorSpec("mrope_position_deltas", DType.INT64, (1,), optional=True),
    TensorSpec("lora_task_id", DType.UINT64, (1,), optional=True, reshape=()),
    TensorSpec("lora_weights", DType.FP16, (-1, -1), optional=True, ragged=True),
    TensorSpec("lora_config", DType.INT32, (-1, 3), optional=True, ragged=True),
    TensorSpec("context_phase_params", DType.UINT8, (-1,), optional=True, ragged=True),
    TensorSpec("skip_cross_attn_blocks", DType.BOOL, (1,), optional=True, ragged=True),
    TensorSpec("retention_token_range_starts", DType.INT32, (-1,), optional=True, ragged=True),
    TensorSpec("retention_token_range_ends", DType.INT32, (-1,), optional=True, ragged=True),
    TensorSpec("retention_token_range_priorities", DType.INT32, (-1,), optional=True, ragged=True),
    TensorSpec("retention_token_range_durations_ms", DType.INT32, (-1,), optional=True, ragged=True),
    TensorSpec("retention_decode_priority", DType.INT32, (1,), optional=True, ragged=True),
    TensorSpec("retention_decode_duration_ms", DType.INT32, (1,), optional=True, ragged=True),
    TensorSpec("guided_decoding_guide_type", DType.STRING, (1,), optional=True, ragged=True),
    TensorSpec("guided_decoding_guide", DType.STRING, (1,), optional=True, ragged=True),
    TensorSpec("lookahead_window_size", DType.INT32, (1,), optional=True, ragged=True),
    TensorSpec("lookahead_ngram_size", DType.INT32, (1,), optional=True, ragged=True),
    TensorSpec("lookahead_verification_set_size", DType.INT32, (1,), optional=True, ragged=True),
)

ENGINE_CONTRACT_OUTPUTS: tuple[TensorSpec, ...] = (
    TensorSpec("output_ids", DType.INT32, (-1, -1)),
    TensorSpec("sequence_length", DType.INT32, (-1,)),
    TensorSpec("cum_log_probs", DType.FP32, (-1,)),
    TensorSpec("output_log_probs", DType.FP32, (-1, -1)),
    TensorSpec("context_logits", DType.FP32, (-1, -1)),
    TensorSpec("generation_logits", DType.FP32, (-1, -1, -1)),
    TensorSpec("batch_index", DType.INT32, (1,)),
    TensorSpec("sequence_index", DType.INT32, (1,)),
    TensorSpec("context_phase_params", DType.UINT8, (-1,)),
    TensorSpec("kv_cache_alloc_new_blocks", DType.INT32, (1,)),
    TensorSpec("kv_cache_reused_blocks", DType.INT32, (1,)),
    TensorSpec("kv_cache_alloc_total_blocks", DType.INT32, (1,)),
    TensorSpec("arrival_time_ns", DType.INT64, (1,)),
    TensorSpec("first_scheduled_time_ns", DType.INT64, (1,)),
    TensorSpec("first_token_time_ns", DType.INT64, (1,)),
    TensorSpec("last_token_time_ns", DType.INT64, (1,)),
    TensorSpec("acceptance_rate", DType.FP32, (1,)),
    TensorSpec("total_accepted_draft_tokens", DType.INT32, (1,)),
    TensorSpec("total_draft_tokens", DType.INT32, (1,)),
    TensorSpec("num_input_tokens", DType.INT32, (1,)),
    TensorSpec("num_output_tokens", DType.INT32, (1,)),
)

# Whose KV blocks may be reused: those of requests with an equal salt. Up to the first "/" it names the tenant, the rest narrows.
CACHE_SALT_INPUT = TensorSpec("cache_salt", DType.STRING, (1,), optional=True)

# What a whole answer must match; neither or both are given, but the type json needs no guide. Types by name, with their guides:
#
#   json            empty: any JSON value (for "some object" send json_schema {"type": "object"}, which all engines read alike)
#   json_schema     a JSON Schema
#   regex           a regular expression for the whole answer
#   ebnf_grammar    rules "name ::= alternatives", the first one called root (GBNF, as xgrammar takes it)
#   structural_tag  {"structures": [{"begin": text, "schema": JSON Schema, "end": text}], "triggers": [text]}: free text until a
#                   trigger, then one of the structures that begin with it
#   choice          a JSON array of texts, one of which is the answer; ours, the router makes a regex of it for the engines
#
# The router refuses whatever an engine would not honour (TensorRT-LLM ignores a type that it does not know).
GUIDE_TYPES = ("json", "json_schema", "regex", "ebnf_grammar", "structural_tag", "choice")
GUIDE_INPUTS: tuple[TensorSpec, ...] = (
    TensorSpec("guided_decoding_guide_type", DType.STRING, (1,), optional=True),
    TensorSpec("guided_decoding_guide", DType.STRING, (1,), optional=True),
)

ENGINE_EXTENSION_INPUTS: tuple[TensorSpec, ...] = (
    # Capability "min_p": keep tokens whose probability is at least min_p times the highest one.
    TensorSpec("min_p", DType.FP32, (1,), optional=True, reshape=()),
    # Capability "top_logprobs": number of alternatives to report per generated token.
    TensorSpec("top_logprobs", DType.INT32, (1,), optional=True, reshape=()),
    # Capability "cache_salt".
    CACHE_SALT_INPUT,
)

ENGINE_EXTENSION_OUTPUTS: tuple[TensorSpec, ...] = (
    # Capability "entropy": nats of the unmasked distribution, for the new tokens of this response; -1 for a token that a guide
    # left no alternative to. [1, beams, n]
    TensorSpec("output_entropy", DType.FP32, (-1, -1)),
    # Capability "top_logprobs": for the new tokens of this response, best first. [1, n, top_logprobs]
    TensorSpec("output_top_ids", DType.INT32, (-1, -1)),
    TensorSpec("output_top_log_probs", DType.FP32, (-1, -1)),
)

ENGINE = ModelSpec(
    inputs=ENGINE_CONTRACT_INPUTS + ENGINE_EXTENSION_INPUTS,
    outputs=ENGINE_CONTRACT_OUTPUTS + ENGINE_EXTENSION_OUTPUTS,
)

# --- text side: preprocessing -> router, joined by the ensemble "tandem" ---------------------------------------------------

# What a caller says of its prompt: exactly one of text_input (raw text) and messages (JSON array of chat messages).
# On stop=true neither is needed. A caller's text never becomes control tokens; only the chat template places those.
PROMPT_INPUTS: tuple[TensorSpec, ...] = (
    TensorSpec("text_input", DType.STRING, (1,), optional=True),
    TensorSpec("messages", DType.STRING, (1,), optional=True),
    # JSON array of the functions shown to the model beside messages. It says nothing about the answer, which stays text:
    # what may be called, and when, is said by a guide.
    TensorSpec("tools", DType.STRING, (1,), optional=True),
)

# What the router looks at beside the prompt. path: auto | fast | slow (default auto). threshold: win rate (0 to 1) from which on
# this request goes slow. slo_*: milliseconds that the answer shall keep. session: names the conversation, within the tenant.
ROUTE_INPUTS: tuple[TensorSpec, ...] = (
    TensorSpec("path", DType.STRING, (1,), optional=True),
    TensorSpec("task", DType.STRING, (1,), optional=True),
    TensorSpec("api_path", DType.STRING, (1,), optional=True),
    TensorSpec("source", DType.STRING, (1,), optional=True),
    TensorSpec("threshold", DType.FP32, (1,), optional=True),
    TensorSpec("slo_ttft_ms", DType.FP32, (1,), optional=True),
    TensorSpec("slo_tpot_ms", DType.FP32, (1,), optional=True),
    TensorSpec("session", DType.STRING, (1,), optional=True),
)

# Sampling, with the names of TensorRT-LLM's text-level ensemble; the last block is ours.
SAMPLING_INPUTS: tuple[TensorSpec, ...] = (
    TensorSpec("max_tokens", DType.INT32, (1,), optional=True),
    TensorSpec("stream", DType.BOOL, (1,), optional=True),
    TensorSpec("stop_words", DType.STRING, (-1,), optional=True),
    TensorSpec("bad_words", DType.STRING, (-1,), optional=True),
    TensorSpec("end_id", DType.INT32, (1,), optional=True),
    TensorSpec("top_k", DType.INT32, (1,), optional=True),
    TensorSpec("top_p", DType.FP32, (1,), optional=True),
    TensorSpec("temperature", DType.FP32, (1,), optional=True),
    TensorSpec("repetition_penalty", DType.FP32, (1,), optional=True),
    TensorSpec("presence_penalty", DType.FP32, (1,), optional=True),
    TensorSpec("frequency_penalty", DType.FP32, (1,), optional=True),
    TensorSpec("min_tokens", DType.INT32, (1,), optional=True),
    TensorSpec("seed", DType.UINT64, (1,), optional=True),
    TensorSpec("num_return_sequences", DType.INT32, (1,), optional=True),
    TensorSpec("return_log_probs", DType.BOOL, (1,), optional=True),
    TensorSpec("min_p", DType.FP32, (1,), optional=True),
    TensorSpec("top_logprobs", DType.INT32, (1,), optional=True),
    TensorSpec("ignore_eos", DType.BOOL, (1,), optional=True),
    TensorSpec("logit_bias_ids", DType.INT32, (-1,), optional=True),
    TensorSpec("logit_bias_values", DType.FP32, (-1,), optional=True),
)

# stop=true cancels the running request of the same Triton request id, at every layer.
STOP_INPUT = TensorSpec("stop", DType.BOOL, (1,), optional=True)

# An ensemble on Triton 2.51 hangs when a step leaves out an output, so preprocessing and router always give all of theirs.
PREPROCESSING = ModelSpec(
    inputs=(*PROMPT_INPUTS, *ROUTE_INPUTS, STOP_INPUT),
    outputs=(
        # Padded with 0 where a batch holds prompts of unequal length. [num_prompt_tokens]
        TensorSpec("input_ids", DType.INT32, (-1,)),
        TensorSpec("input_lengths", DType.INT32, (1,)),
        # JSON object of tandem.routing.features.RouteFeatures: what the router may know of the prompt.
        TensorSpec("route_features", DType.STRING, (1,)),
    ),
)

ROUTER = ModelSpec(
    inputs=(
        TensorSpec("input_ids", DType.INT32, (-1,)),
        TensorSpec("input_lengths", DType.INT32, (1,)),
        TensorSpec("route_features", DType.STRING, (1,)),
        *SAMPLING_INPUTS,
        *GUIDE_INPUTS,
        CACHE_SALT_INPUT,
        STOP_INPUT,
    ),
    outputs=(
        # Whole characters only. stream: the delta of this response; else the full text.
        TensorSpec("text_output", DType.STRING, (1,)),
        # "" until the last response of a sequence, then stop | length | cancelled.
        TensorSpec("finish_reason", DType.STRING, (1,)),
        TensorSpec("batch_index", DType.INT32, (1,)),
        TensorSpec("sequence_index", DType.INT32, (1,)),
        TensorSpec("num_input_tokens", DType.INT32, (1,)),
        # Generated tokens of this sequence so far (the end token is not counted).
        TensorSpec("num_output_tokens", DType.INT32, (1,)),
        # Tokens of the prompt that the engine did not compute, because an earlier request with the same beginning had.
        TensorSpec("num_cached_tokens", DType.INT32, (1,)),
        # Of the tokens newly covered by this response; zero length unless return_log_probs. [n]
        TensorSpec("output_log_probs", DType.FP32, (-1,)),
        # JSON array of {token, bytes, logprob, top_logprobs} for the same tokens; "" unless return_log_probs.
        TensorSpec("log_probs_content", DType.STRING, (1,)),
        # fast | slow: the path that wrote this text; engine: the Triton model. Not called "path": inputs and outputs of an
        # ensemble share one name space, and "path" is what the caller asks for.
        TensorSpec("served_path", DType.STRING, (1,)),
        TensorSpec("engine", DType.STRING, (1,)),
        # One readable line: stage, reason, cost. The same in every response of a request.
        TensorSpec("decision", DType.STRING, (1,)),
        # JSON of tandem.routing.explain.DecisionRecord: what the decision rests on, without the prompt. In the first response of a
        # row, "" in the others.
        TensorSpec("decision_record", DType.STRING, (1,)),
    ),
)

TANDEM = ModelSpec(
    inputs=(*PROMPT_INPUTS, *ROUTE_INPUTS, *SAMPLING_INPUTS, *GUIDE_INPUTS, CACHE_SALT_INPUT, STOP_INPUT),
    outputs=ROUTER.outputs,
)

# --- route_classifier: asked by the router when no rule is sure ------------------------------------------------------------

# What a prompt asks for: the classes of the classifier, named like the task tags and intents of the rules. Order of task_probs.
ROUTE_TASKS: tuple[str, ...] = (
    "extraction",
    "classification",
    "formatting",
    "translation",
    "rewriting",
    "question",
    "arithmetic",
    "code",
    "writing",
    "reasoning",
    "proof",
    "planning",
)

ROUTE_CLASSIFIER = ModelSpec(
    inputs=(TensorSpec("text_input", DType.STRING, (1,)),),
    outputs=(
        # Calibrated probability that the fast path suffices.
        TensorSpec("fast_suffices", DType.FP32, (1,)),
        TensorSpec("task_probs", DType.FP32, (len(ROUTE_TASKS),)),
        # The likeliest of ROUTE_TASKS.
        TensorSpec("task", DType.STRING, (1,)),
    ),
)

MODELS: dict[str, ModelSpec] = {
    TANDEM_MODEL: TANDEM,
    PREPROCESSING_MODEL: PREPROCESSING,
    ROUTER_MODEL: ROUTER,
    ROUTE_CLASSIFIER_MODEL: ROUTE_CLASSIFIER,
    **dict.fromkeys(ENGINE_MODELS, ENGINE),
}
