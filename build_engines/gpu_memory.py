"""How the memory of each GPU is used: weights, activations, runtime, and what is left for KV blocks.

Weights and KV cache are exact arithmetic from the shape of the model. Activations and runtime are estimates, rounded up: TensorRT
decides them while it builds. A KV budget is stated in tokens and not as a share of free memory, because TensorRT-LLM takes its
share of what is free at the moment an engine loads: with two engines on a GPU the order of loading would decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from build_engines.kv_plan import KvDemand, KvPlan, KvShape, plan
from build_engines.model_shape import ModelShape
from build_engines.rules import Finding, Severity
from build_engines.spec import Deployment, EngineSpec, GpuPrecision, KvDtype, Speculation

GIB = 1 << 30
_SCALE_BYTES = 2
_KV_NAMES = {KvDtype.FP16: "f16", KvDtype.INT8: "int8", KvDtype.FP8: "fp8"}
_WEIGHT_BYTES = {
    GpuPrecision.INT4_AWQ: 0.5,
    GpuPrecision.W4A8_AWQ: 0.5,
    GpuPrecision.NVFP4: 0.5 + 1 / 16,  # an FP8 scale per 16 weights
    GpuPrecision.INT8_WO: 1.0,
    GpuPrecision.INT8_SQ: 1.0,
    GpuPrecision.FP8: 1.0,
    GpuPrecision.FP16: 2.0,
}
_GROUPED = (GpuPrecision.INT4_AWQ, GpuPrecision.W4A8_AWQ)
_RUNTIME_BYTES_PER_ENGINE = int(1.5 * GIB)
"""CUDA context, cuBLAS and NCCL workspaces, decoder buffers of one rank."""
_ACTIVATION_ROOM = 1.5
"""TensorRT keeps more than the largest layer's buffers alive; half as much again has room for that."""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """One engine on each of its GPUs, in bytes; ``kv_bytes_per_token`` of this rank. ``kv_tokens`` and what follows from it: of the
    engine, since every rank holds its share of every token. ``concurrency`` counts sequences of full ``max_seq_len``."""

    engine: str
    gpus: tuple[int, ...]
    weight_bytes: int
    activation_bytes: int
    runtime_bytes: int
    kv_bytes_per_token: float
    kv_tokens: int
    kv_bytes: int
    num_blocks: int
    concurrency: int

    @property
    def fixed_bytes(self) -> int:
        return self.weight_bytes + self.activation_bytes + self.runtime_bytes


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """One GPU with the engines on it."""

    gpu: int
    total_bytes: int
    used_bytes: int
    engines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    ranks: tuple[RankMemory, ...]
    gpus: tuple[GpuMemory, ...]

    def rank(self, engine: str) -> RankMemory:
        return next(rank for rank in self.ranks if rank.engine == engine)


def plan_memory(deployment: Deployment) -> MemoryPlan:
    """Lay the engines out. Give it a deployment whose rules hold; a GPU that is too small shows as an engine with few "
    "or no tokens."""
    total = int(deployment.gpu.memory_gib * GIB)
    fixed = {spec.name: _fixed(spec, deployment.shape(spec)) for spec in deployment.engines}
    left = dict.fromkeys(range(deployment.num_gpus), total)
    for spec in deployment.engines:
        for gpu in spec.gpus:
            left[gpu] -= sum(fixed[spec.name])
    ranks = tuple(_rank(spec, deployment.shape(spec), fixed[spec.name], left) for spec in deployment.engines)
    gpus = tuple(
        GpuMemory(
            gpu,
            total,
            sum(rank.fixed_bytes + rank.kv_bytes for rank in ranks if gpu in rank.gpus),
            tuple(rank.engine for rank in ranks if gpu in rank.gpus),
        )
        for gpu in left
    )
    return MemoryPlan(ranks, gpus)


def check_memory(deployment: Deployment, memory: MemoryPlan) -> Iterator[Finding]:
    """What does not fit, and what fits less than it promises."""
    for spec in deployment.engines:
        rank = memory.rank(spec.name)
        ids = ", ".join(map(str, spec.gpus))
        where = f"GPU{'s' if len(spec.gpus) > 1 else ''} {ids} ({deployment.gpu.name}, {deployment.gpu.memory_gib:g} GiB)"
        if rank.kv_tokens < 1:
            reason = f"weights and activations alone fill {where}; this engine needs {rank.fixed_bytes / GIB:.1f} GiB per GPU"
            yield Finding("memory-too-small", Severity.ERROR, spec.name, reason, "use a smaller precision, more tp, or another GPU")
        elif rank.concurrency < 1:
            reason = f"the KV cache on {where} holds {rank.kv_tokens} tokens, less than one sequence of {spec.max_seq_len}"
            yield Finding(
                "no-room-for-one-sequence", Severity.ERROR, spec.name, reason, "lower max_seq_len, or give it a larger kv_share"
            )
        elif rank.kv_tokens < spec.max_batch_size * spec.max_seq_len // 8:
            reason = (
                f"the KV cache on {where} holds {rank.kv_tokens} tokens: {spec.max_batch_size} sequences at once may have "
                f"{rank.kv_tokens // spec.max_batch_size} each, while max_seq_len promises {spec.max_seq_len}"
            )
            yield Finding("kv-cache-small", Severity.WARNING, spec.name, reason, "lower max_batch_size, or expect requests to wait")


def _fixed(spec: EngineSpec, shape: ModelShape) -> tuple[int, int, int]:
    """Bytes per GPU that do not depend on the KV cache: weights, activations, runtime."""
    return _weight_bytes(spec, shape), _activation_bytes(spec, shape), _RUNTIME_BYTES_PER_ENGINE


def _weight_bytes(spec: EngineSpec, shape: ModelShape) -> int:
    """Layers are split over tp and pp. The embedding is copied to every rank of the first stage, the LM head is split "
    "over tp."""
    per_weight = _WEIGHT_BYTES[spec.precision]
    if spec.precision in _GROUPED:
        per_weight += _SCALE_BYTES / spec.group_size
    layers = shape.num_layer_weights * per_weight / spec.world_size
    head = 0.0 if shape.has_tied_embeddings and spec.tp == 1 else shape.num_embedding_weights * 2 / spec.tp
    return int(layers + shape.num_embedding_weights * 2 + head)


def _activation_bytes(spec: EngineSpec, shape: ModelShape) -> int:
    """The widest moment of a layer over ``max_num_tokens`` tokens in 16 bits, and the logits of a full batch in FP32, twice."""
    qkv = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_size // spec.tp
    widest = max(2 * shape.intermediate_size // spec.tp, qkv) + 2 * shape.hidden_size
    layer = spec.max_num_tokens * widest * 2 * _ACTIVATION_ROOM
    drafts = spec.max_draft_len if spec.speculation is not Speculation.NONE else 0
    logits = spec.max_batch_size * (drafts + 1) * shape.vocab_size * 4 * 2
    return int(layer + logits)


def _rank(spec: EngineSpec, shape: ModelShape, fixed: tuple[int, int, int], left: Mapping[int, int]) -> RankMemory:
    budget = int(max(min(left[gpu] for gpu in spec.gpus), 0) * spec.kv_share)
    # KV heads are split over tp; with more ranks than heads each rank holds a copy of one.
    kv = KvShape(-(-shape.num_layers // spec.pp), max(shape.num_kv_heads // spec.tp, 1), shape.head_size)
    one_block = plan(kv, KvDemand(spec.tokens_per_block, 1, _KV_NAMES[spec.kv_dtype], spec.tokens_per_block), "trtllm")
    assert isinstance(one_block, KvPlan)
    num_blocks = budget // one_block.total_bytes
    tokens = num_blocks * spec.tokens_per_block
    weights, activations, runtime = fixed
    return RankMemory(
        engine=spec.name,
        gpus=spec.gpus,
        weight_bytes=weights,
        activation_bytes=activations,
        runtime_bytes=runtime,
        kv_bytes_per_token=one_block.bytes_per_token,
        kv_tokens=tokens,
        kv_bytes=num_blocks * one_block.total_bytes,
        num_blocks=num_blocks,
        concurrency=num_blocks // -(-spec.max_seq_len // spec.tokens_per_block),
    )
