"""Configuration of the Triton models, read from the ``parameters`` of their config.pbtxt (all of them ``string_value``).

A parameter that is unknown, empty or still a ``${placeholder}`` is an error at load that names key, value and remedy. Engine
parameters carry TensorRT-LLM's names where it has one. Those whose value this CPU engine cannot honour are refused, since a
setting that is accepted and does nothing is worse than one that is missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn, get_args

from tandem.capabilities import Capabilities, Capability
from tandem.errors import SetupError

KV_CACHE_DTYPES = ("f32", "f16", "u8")

SchedulingPolicy = Literal["fcfs", "slo"]
"""How waiting requests are ordered, in an engine and in front of one; see tandem.scheduling."""
SCHEDULING_POLICIES: tuple[SchedulingPolicy, ...] = get_args(SchedulingPolicy)

EngineProfile = Literal["cpu", "trtllm", "llmapi"]
"""The kind of the engines, which decides what may be asked of them; see tandem.guided.capabilities."""
ENGINE_PROFILES: tuple[EngineProfile, ...] = get_args(EngineProfile)

# Parameters of the tensorrt_llm model -> the values that describe what this engine does. Anything else is refused.
_ONLY_VALUES: dict[str, tuple[str, ...]] = {
    "gpt_model_type": ("inflight_fused_batching", "inflight_batching"),
    "max_beam_width": ("1",),
    "batch_scheduler_policy": ("max_utilization",),  # sequences are preempted and recomputed when blocks run out
    "enable_chunked_context": ("true",),
    "normalize_log_probs": ("false",),  # log-probabilities are those of the full softmax
    "decoding_mode": ("auto", "top_k_top_p"),
    "kv_cache_host_memory_bytes": ("0",),
    "num_nodes": ("1",),
    "FORCE_CPU_ONLY_INPUT_TENSORS": ("yes", "no"),  # read by Triton's Python backend; there is no other memory here
}

# Parameters of the tensorrt_llm model that mean something on a GPU or for a kind of model that this engine is not.
# fmt: off
_NOT_HERE = frozenset((
    "cross_kv_cache_fraction", "cuda_graph_cache_size", "cuda_graph_mode", "eagle_choices", "enable_context_fmha_fp32_acc",
    "enable_trt_overlap", "encoder_model_path", "executor_worker_path", "gpu_device_ids", "gpu_weights_percent",
    "guided_decoding_backend", "iter_stats_max_iterations", "kv_cache_free_gpu_mem_fraction", "kv_cache_onboard_blocks",
    "lookahead_ngram_size", "lookahead_verification_set_size", "lookahead_window_size", "lora_cache_gpu_memory_fraction",
    "lora_cache_host_memory_bytes", "lora_cache_max_adapter_size", "lora_cache_optimal_adapter_size", "lora_prefetch_dir",
    "max_attention_window_size", "medusa_choices", "multi_block_mode", "participant_ids", "recv_poll_period_ms",
    "request_stats_max_iterations", "sink_token_length", "speculative_decoding_fast_logits", "tokenizer_dir",
    "xgrammar_tokenizer_info_path",
))
# fmt: on


@dataclass(frozen=True, slots=True)
class EngineModelConfig:
    """One engine model. Names are the parameters' names; see ``tandem.engine.config`` for the last four.

    ``engine_dir``: the folder of the built engine (parameter ``gpt_model_path``). ``max_tokens_in_paged_kv_cache``: tokens, rounded
    down to whole blocks. ``num_threads`` 0 in the file means: all CPUs this process may use. ``max_seq_len``: prompt and completion
    together, in tokens. ``max_draft_len``: longest ``draft_input_ids``; 0 refuses drafts. ``enable_kv_cache_reuse``: sequences
    begin with the KV blocks of an equal prefix that an earlier one computed. ``scheduling_policy`` and ``slo_ttft_ms`` are ours,
    and so is ``has_dynamic_quantization`` (parameter ``dynamic_quantization``): activations in 8 bits, faster in batches, but
    tokens then depend on the batch.
    """

    name: str
    version: str
    engine_dir: Path
    max_tokens_in_paged_kv_cache: int
    kv_cache_dtype: str
    has_dynamic_quantization: bool
    num_threads: int
    exclude_input_in_output: bool
    cancellation_check_period_ms: int
    stats_check_period_ms: int
    max_seq_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_queue_size: int
    max_draft_len: int
    enable_kv_cache_reuse: bool
    scheduling_policy: SchedulingPolicy
    slo_ttft_ms: int


@dataclass(frozen=True, slots=True)
class RouterModelConfig:
    """The router model. ``engine_dirs``: engine model -> its folder (for the tokenizer). ``rules_file`` None: the built-in rules.

    ``max_in_flight`` bounds the requests that one engine is given at a time; ``max_waiting`` more may wait for it, in the order of
    ``scheduling_policy``, and one more is refused as overloaded. ``max_concurrent_requests`` bounds the threads; one row of a
    request takes one, also while it waits for its engine. ``max_queue_size`` rows may wait for a thread, one more is refused as
    overloaded. ``max_seq_len``, ``tokens_per_block`` and ``kv_cache_tokens`` are those of the engines, ``engine_profile`` says what
    kind they are, ``engine_capabilities`` what each of them can do.
    """

    name: str
    engine_dirs: Mapping[str, Path]
    max_seq_len: int
    rules_file: Path | None
    default_max_tokens: int
    max_concurrent_requests: int
    max_queue_size: int
    cancellation_check_period_ms: int
    tokens_per_block: int
    kv_cache_tokens: int
    max_in_flight: int
    max_waiting: int
    scheduling_policy: SchedulingPolicy
    slo_ttft_ms: int
    engine_profile: EngineProfile
    engine_capabilities: Mapping[str, Capabilities]


@dataclass(frozen=True, slots=True)
class LlmApiModelConfig:
    """One engine model of the ``llmapi`` profile. ``model_dir``: a Hugging Face folder or a unified checkpoint of modelopt.

    ``gpu_device_ids`` as in CUDA_VISIBLE_DEVICES. ``max_queue_size``: requests beyond ``max_batch_size`` that may wait in the LLM.
    ``kv_cache_dtype``: auto is that of the checkpoint. ``guided_decoding_backend`` None: guides are refused.
    """

    name: str
    model_dir: Path
    tensor_parallel_size: int
    pipeline_parallel_size: int
    gpu_device_ids: str
    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int
    max_queue_size: int
    max_tokens_in_paged_kv_cache: int
    tokens_per_block: int
    kv_cache_dtype: str
    enable_kv_cache_reuse: bool
    enable_chunked_context: bool
    guided_decoding_backend: str | None
    exclude_input_in_output: bool
    cancellation_check_period_ms: int


@dataclass(frozen=True, slots=True)
class PreprocessingModelConfig:
    """The preprocessing model. ``tokenizer_dir``: a folder with tokenizer.json and tokenizer_config.json."""

    name: str
    tokenizer_dir: Path
    max_seq_len: int


@dataclass(frozen=True, slots=True)
class RouteClassifierModelConfig:
    """The route classifier. ``encoder_dir``: the built sentence encoder. ``head_dir`` None: the head shipped with Tandem."""

    name: str
    encoder_dir: Path
    head_dir: Path | None


def tandem_home(environ: Mapping[str, str] | None = None) -> Path:
    """Where engines and logs live: ``$TANDEM_HOME``, else ``~/.cache/tandem``."""
    text = (os.environ if environ is None else environ).get("TANDEM_HOME")
    return Path(text) if text else Path.home() / ".cache" / "tandem"


def engine_config(name: str, version: str, parameters: Mapping[str, str], home: Path) -> EngineModelConfig:
    """Raises: SetupError naming model, key, value and remedy."""
    reader = _Reader(name, parameters)
    for key, allowed in _ONLY_VALUES.items():
        reader.only(key, allowed)
    for key in sorted(_NOT_HERE & set(parameters)):
        raise SetupError(f"model {name}: parameter {key} (value {parameters[key]!r}) has no meaning for a CPU engine; remove it.")
    config = EngineModelConfig(
        name=name,
        version=version,
        engine_dir=reader.folder("gpt_model_path", home),
        max_tokens_in_paged_kv_cache=reader.number("max_tokens_in_paged_kv_cache", 1),
        kv_cache_dtype=reader.choice("kv_cache_dtype", KV_CACHE_DTYPES, default="f16"),
        has_dynamic_quantization=reader.flag("dynamic_quantization", default=False),
        num_threads=reader.number("num_threads", 0, default=0) or len(os.sched_getaffinity(0)),
        exclude_input_in_output=reader.flag("exclude_input_in_output", default=False),
        cancellation_check_period_ms=reader.number("cancellation_check_period_ms", 1, default=100),
        stats_check_period_ms=reader.number("stats_check_period_ms", 1, default=100),
        max_seq_len=reader.number("max_seq_len", 2),
        max_num_seqs=reader.number("max_num_seqs", 1, default=16),
        max_num_batched_tokens=reader.number("max_num_batched_tokens", 1, default=256),
        max_queue_size=reader.number("max_queue_size", 0, default=128),
        max_draft_len=reader.number("max_draft_len", 0, high=0, default=0),
        enable_kv_cache_reuse=reader.flag("enable_kv_cache_reuse", default=True),
        scheduling_policy=reader.policy("scheduling_policy"),
        slo_ttft_ms=reader.number("slo_ttft_ms", 1, default=2000),
    )
    reader.finish()
    return config


def router_config(name: str, parameters: Mapping[str, str], home: Path) -> RouterModelConfig:
    """Raises: SetupError naming model, key, value and remedy."""
    reader = _Reader(name, parameters)
    rules = reader.text("rules_file", default="built-in")
    config = RouterModelConfig(
        name=name,
        engine_dirs=reader.folders("engine_dirs", home),
        max_seq_len=reader.number("max_seq_len", 2),
        rules_file=None if rules == "built-in" else home / rules,
        default_max_tokens=reader.number("default_max_tokens", 1, default=512),
        max_concurrent_requests=reader.number("max_concurrent_requests", 1, default=64),
        max_queue_size=reader.number("max_queue_size", 0, default=128),
        cancellation_check_period_ms=reader.number("cancellation_check_period_ms", 1, default=100),
        max_in_flight=reader.number("max_in_flight", 1, default=16),
        max_waiting=reader.number("max_waiting", 0, default=128),
        scheduling_policy=reader.policy("scheduling_policy"),
        slo_ttft_ms=reader.number("slo_ttft_ms", 1, default=2000),
        tokens_per_block=reader.number("tokens_per_block", 1, default=32),
        kv_cache_tokens=reader.number("kv_cache_tokens", 1, default=16384),
        engine_profile=reader.profile("engine_profile"),
        engine_capabilities=reader.capabilities("engine_capabilities"),
    )
    reader.finish()
    if set(config.engine_capabilities) != set(config.engine_dirs):
        raise SetupError(f"model {name}: engine_capabilities and engine_dirs name different engines; render the repository anew.")
    return config


def llmapi_config(name: str, parameters: Mapping[str, str], home: Path) -> LlmApiModelConfig:
    """Raises: SetupError naming model, key, value and remedy."""
    reader = _Reader(name, parameters)
    has_guides = "guided_decoding_backend" in parameters
    config = LlmApiModelConfig(
        name=name,
        model_dir=reader.folder("model_dir", home),
        tensor_parallel_size=reader.number("tensor_parallel_size", 1, default=1),
        pipeline_parallel_size=reader.number("pipeline_parallel_size", 1, default=1),
        gpu_device_ids=reader.text("gpu_device_ids"),
        max_batch_size=reader.number("max_batch_size", 1),
        max_num_tokens=reader.number("max_num_tokens", 1),
        max_seq_len=reader.number("max_seq_len", 2),
        max_queue_size=reader.number("max_queue_size", 0, default=128),
        max_tokens_in_paged_kv_cache=reader.number("max_tokens_in_paged_kv_cache", 1),
        tokens_per_block=reader.number("tokens_per_block", 1, default=32),
        kv_cache_dtype=reader.choice("kv_cache_dtype", ("auto", "fp8"), default="auto"),
        enable_kv_cache_reuse=reader.flag("enable_kv_cache_reuse", default=True),
        enable_chunked_context=reader.flag("enable_chunked_context", default=True),
        guided_decoding_backend=reader.choice("guided_decoding_backend", ("xgrammar", "llguidance"), default="xgrammar")
        if has_guides
        else None,
        exclude_input_in_output=reader.flag("exclude_input_in_output", default=False),
        cancellation_check_period_ms=reader.number("cancellation_check_period_ms", 1, default=100),
    )
    reader.finish()
    return config


def preprocessing_config(name: str, parameters: Mapping[str, str], home: Path) -> PreprocessingModelConfig:
    """Raises: SetupError naming model, key, value and remedy."""
    reader = _Reader(name, parameters)
    config = PreprocessingModelConfig(
        name=name,
        tokenizer_dir=reader.folder("tokenizer_dir", home),
        max_seq_len=reader.number("max_seq_len", 2),
    )
    reader.finish()
    return config


def route_classifier_config(name: str, parameters: Mapping[str, str], home: Path) -> RouteClassifierModelConfig:
    """Raises: SetupError naming model, key, value and remedy."""
    reader = _Reader(name, parameters)
    head = reader.text("head_dir", default="built-in")
    config = RouteClassifierModelConfig(
        name=name,
        encoder_dir=reader.folder("encoder_dir", home),
        head_dir=None if head == "built-in" else home / head,
    )
    reader.finish()
    return config


class _Reader:
    """Reads parameters by key, each with its check, and knows in the end which ones nobody asked for."""

    def __init__(self, model: str, parameters: Mapping[str, str]) -> None:
        self._model = model
        self._left = dict(parameters)
        for key, value in parameters.items():
            if not value.strip() or re.search(r"\$\{?\w", value):
                raise SetupError(f"model {model}: parameter {key} is not filled in (value {value!r}); render the repository anew.")

    def text(self, key: str, *, default: str | None = None) -> str:
        value = self._left.pop(key, default)
        if value is None:
            raise SetupError(f"model {self._model}: parameter {key} is missing; add it to config.pbtxt.")
        return value

    def only(self, key: str, allowed: tuple[str, ...]) -> None:
        """A parameter that may be left out, and whose value must be what the engine does anyway."""
        value = self._left.pop(key, None)
        if value is not None and value.lower() not in allowed and value not in allowed:
            self._refuse(key, value, f"this engine offers only {' or '.join(allowed)}")

    def choice(self, key: str, allowed: tuple[str, ...], *, default: str) -> str:
        value = self.text(key, default=default)
        if value not in allowed:
            self._refuse(key, value, f"give one of {', '.join(allowed)}")
        return value

    def policy(self, key: str) -> SchedulingPolicy:
        text = self.choice(key, SCHEDULING_POLICIES, default="slo")
        return next(policy for policy in SCHEDULING_POLICIES if policy == text)

    def profile(self, key: str) -> EngineProfile:
        text = self.choice(key, ENGINE_PROFILES, default="cpu")
        return next(profile for profile in ENGINE_PROFILES if profile == text)

    def number(self, key: str, low: int, *, high: int | None = None, default: int | None = None) -> int:
        text = self.text(key, default=None if default is None else str(default))
        value = int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else None
        if value is None or value < low or (high is not None and value > high):
            self._refuse(key, text, f"give a whole number of at least {low}" + (f" and at most {high}" if high is not None else ""))
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        text = self.text(key, default=str(default))
        values = {"true": True, "1": True, "false": False, "0": False}
        if text.lower() not in values:
            self._refuse(key, text, "give true or false")
        return values[text.lower()]

    def folder(self, key: str, home: Path) -> Path:
        """A folder that exists; a relative path counts from ``home``."""
        return self._existing(key, home / self.text(key))

    def folders(self, key: str, home: Path) -> dict[str, Path]:
        """``name=path`` pairs, separated by commas, in their order."""
        text = self.text(key)
        folders: dict[str, Path] = {}
        for part in text.split(","):
            name, separator, path = (piece.strip() for piece in part.partition("="))
            if not (name and separator and path) or name in folders:
                self._refuse(key, text, "give name=folder pairs separated by commas, each name once")
            folders[name] = self._existing(key, home / path)
        return folders

    def capabilities(self, key: str) -> dict[str, Capabilities]:
        """``name=capability+capability`` pairs, separated by commas."""
        text = self.text(key)
        found: dict[str, Capabilities] = {}
        for part in text.split(","):
            name, separator, words = (piece.strip() for piece in part.partition("="))
            if not (name and separator) or name in found:
                self._refuse(key, text, "give name=capability+capability pairs separated by commas, each name once")
            try:
                found[name] = frozenset(Capability(word.strip()) for word in words.split("+"))
            except ValueError:
                self._refuse(key, words, f"known are {', '.join(each.value for each in Capability)}")
        return found

    def finish(self) -> None:
        """Raises: SetupError when a parameter was given that no part of the configuration knows."""
        for key, value in self._left.items():
            raise SetupError(f"model {self._model}: unknown parameter {key} (value {value!r}); remove it or correct its name.")

    def _existing(self, key: str, path: Path) -> Path:
        if not path.is_dir():
            self._refuse(key, str(path), "there is no such folder; build the engines first (`tandem engines build`)")
        return path

    def _refuse(self, key: str, value: str, remedy: str) -> NoReturn:
        raise SetupError(f"model {self._model}: parameter {key} is {value!r}; {remedy}.")
