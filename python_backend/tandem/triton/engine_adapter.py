"""The CPU engine models of Triton: the tensors of ``tensorrt_llm`` in front of :class:`tandem.engine.AsyncEngine`."""

from __future__ import annotations

import os
from collections.abc import Mapping

import triton_python_backend_utils as pb_utils

from tandem.config import EngineModelConfig, engine_config, tandem_home
from tandem.engine import AsyncEngine, EngineConfig, LLMEngine
from tandem.errors import SetupError
from tandem.guided.compiler import GrammarCompiler
from tandem.guided.tokenizer import load_tokenizer
from tandem.models.decoder import Decoder, DecoderInfo
from tandem.models.openvino_decoder import load_decoder
from tandem.triton.engine_front import EngineFront, FrontSettings
from tandem.triton.engine_metrics import EngineMetrics
from tandem.triton.logs import use_triton_log
from tandem.triton.model_args import model_parameters
from tandem.types import Guide, GuideType

_TOKENS_PER_BLOCK = 32  # of OpenVINO's CPU plugin; it tells only once the KV memory stands


class EngineModel(EngineFront):
    """One CPU engine behind one Triton model."""

    @classmethod
    def load(cls, args: Mapping[str, str]) -> EngineModel:
        """Build from what Triton gives ``initialize``. Raises: TritonModelException with one sentence."""
        use_triton_log(args["model_name"])
        try:
            config = engine_config(args["model_name"], args["model_version"], model_parameters(args), tandem_home(os.environ))
            decoder = _load_decoder(config)
            return cls(config, decoder, _load_grammars(config, decoder.info))
        except SetupError as error:
            raise pb_utils.TritonModelException(error.message) from None

    def __init__(self, config: EngineModelConfig, decoder: Decoder, grammars: GrammarCompiler | None = None) -> None:
        """``grammars``: None refuses guided requests; closed with the model."""
        engine = LLMEngine(
            decoder,
            EngineConfig(
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_queue_size=config.max_queue_size,
                max_seq_len=config.max_seq_len,
                scheduling_policy=config.scheduling_policy,
                slo_ttft_ms=config.slo_ttft_ms,
                has_prefix_cache=config.enable_kv_cache_reuse,
            ),
            grammars=grammars,
        )
        settings = FrontSettings(
            name=config.name,
            vocab_size=decoder.info.vocab_size,
            block_size=decoder.info.block_size,
            exclude_input_in_output=config.exclude_input_in_output,
            cancellation_check_period_ms=config.cancellation_check_period_ms,
        )
        runner = AsyncEngine(engine, name=f"tandem-{config.name}")
        super().__init__(settings, runner)
        self._grammars = grammars
        self._metrics = EngineMetrics(
            {"model": config.name, "version": config.version}, runner.stats, config.stats_check_period_ms / 1e3
        )

    def close(self) -> None:
        """As of the front; then the grammar compiler and the metrics."""
        super().close()
        if self._grammars is not None:
            self._grammars.close()
        self._metrics.close()


def _load_grammars(config: EngineModelConfig, info: DecoderInfo) -> GrammarCompiler:
    """A compiler that has compiled once, so that no request pays for its warm-up. Raises: SetupError."""
    grammars = GrammarCompiler(load_tokenizer(config.engine_dir, info.vocab_size))
    grammars.compile(Guide(GuideType.JSON))
    return grammars


def _load_decoder(config: EngineModelConfig) -> Decoder:
    """Raises: SetupError."""
    decoder = load_decoder(
        config.engine_dir,
        kv_cache_dtype=config.kv_cache_dtype,
        num_blocks=max(config.max_tokens_in_paged_kv_cache // _TOKENS_PER_BLOCK, 1),
        num_threads=config.num_threads,
        max_seq_len=config.max_seq_len,
        has_dynamic_quantization=config.has_dynamic_quantization,
    )
    if decoder.info.block_size != _TOKENS_PER_BLOCK:
        raise SetupError(
            f"model {config.name}: OpenVINO's KV blocks hold {decoder.info.block_size} tokens, not {_TOKENS_PER_BLOCK}; "
            "install the version of openvino that the lock file names."
        )
    return decoder
