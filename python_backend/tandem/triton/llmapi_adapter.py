"""The engine models of the ``llmapi`` profile: the tensors of ``tensorrt_llm`` in front of TensorRT-LLM's LLM API.

The router cannot tell it from the other profiles. TensorRT-LLM is imported when a model loads, and nowhere else.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from tandem.config import LlmApiModelConfig, llmapi_config, tandem_home
from tandem.engine import EngineConfig
from tandem.engine.admission import AdmissionRules
from tandem.errors import SetupError
from tandem.models.decoder import DecoderInfo
from tandem.triton.engine_front import EngineFront, FrontSettings
from tandem.triton.llmapi_engine import LlmApiEngine, LlmApiLimits, LlmRuntime
from tandem.triton.logs import use_triton_log
from tandem.triton.model_args import model_parameters


class LlmApiModel(EngineFront):
    """One LLM behind one Triton model."""

    @classmethod
    def load(cls, args: Mapping[str, str]) -> LlmApiModel:
        """Build from what Triton gives ``initialize``. Raises: TritonModelException with one sentence."""
        use_triton_log(args["model_name"])
        try:
            config = llmapi_config(args["model_name"], model_parameters(args), tandem_home(os.environ))
            # Each Triton model instance is a process of its own, so this is the engine's own view of the GPUs.
            os.environ["CUDA_VISIBLE_DEVICES"] = config.gpu_device_ids
            return cls(config, load_runtime(config))
        except SetupError as error:
            raise pb_utils.TritonModelException(error.message) from None

    def __init__(self, config: LlmApiModelConfig, runtime: LlmRuntime) -> None:
        vocab_size = _vocab_size(config.model_dir)
        info = DecoderInfo(
            vocab_size=vocab_size,
            block_size=config.tokens_per_block,
            num_blocks=config.max_tokens_in_paged_kv_cache // config.tokens_per_block,
            max_seq_len=config.max_seq_len,
            kv_bytes_per_token=0,
        )
        rules = AdmissionRules(info, EngineConfig(max_num_seqs=config.max_batch_size, max_seq_len=config.max_seq_len))
        limits = LlmApiLimits(
            vocab_size=vocab_size,
            tokens_per_block=config.tokens_per_block,
            max_open=config.max_batch_size + config.max_queue_size,
            takes_salt=config.enable_kv_cache_reuse,
        )
        settings = FrontSettings(
            name=config.name,
            vocab_size=vocab_size,
            block_size=config.tokens_per_block,
            exclude_input_in_output=config.exclude_input_in_output,
            cancellation_check_period_ms=config.cancellation_check_period_ms,
        )
        super().__init__(settings, LlmApiEngine(runtime, rules, limits, name=f"tandem-{config.name}"))


def load_runtime(config: LlmApiModelConfig) -> LlmRuntime:
    """Import TensorRT-LLM and load the model; takes minutes. Raises: SetupError."""
    try:
        api = importlib.import_module("tensorrt_llm")
        llmapi = importlib.import_module("tensorrt_llm.llmapi")
    except ImportError as error:
        raise SetupError(f"model {config.name}: tensorrt_llm cannot be imported ({error}); run in its container.") from error
    kv_cache = llmapi.KvCacheConfig(
        enable_block_reuse=config.enable_kv_cache_reuse,
        max_tokens=config.max_tokens_in_paged_kv_cache,
        tokens_per_block=config.tokens_per_block,
        dtype=config.kv_cache_dtype,
    )
    optional = {} if config.guided_decoding_backend is None else {"guided_decoding_backend": config.guided_decoding_backend}
    llm = api.LLM(
        model=str(config.model_dir),
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=config.pipeline_parallel_size,
        max_batch_size=config.max_batch_size,
        max_num_tokens=config.max_num_tokens,
        max_seq_len=config.max_seq_len,
        kv_cache_config=kv_cache,
        enable_chunked_prefill=config.enable_chunked_context,
        trust_remote_code=False,
        **optional,
    )
    if config.enable_kv_cache_reuse and "cache_salt" not in inspect.signature(llm.generate_async).parameters:
        llm.shutdown()
        raise SetupError(
            f"model {config.name}: this tensorrt_llm has no cache_salt, so tenants would share KV blocks; use 1.2.1, or set "
            "kv_reuse: false in the deployment and render again."
        )
    return LlmRuntime(llm, api.SamplingParams, llmapi.GuidedDecodingParams, _dense_bias)


def _dense_bias(pairs: tuple[tuple[int, float], ...], vocab_size: int) -> Any:
    """[vocab_size] FP32"""
    torch = importlib.import_module("torch")
    bias = torch.zeros(vocab_size, dtype=torch.float32)
    for token, value in pairs:
        bias[token] = value
    return bias


def _vocab_size(model_dir: Path) -> int:
    """Raises: SetupError."""
    path = model_dir / "config.json"
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetupError(f"{path}: vocab_size cannot be read ({type(error).__name__}); give a Hugging Face folder.") from error
