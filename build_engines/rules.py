"""The rule table: what TensorRT-LLM 1.2.1 refuses, or accepts and silently weakens, said before any work.

Each rule is one row: a name that stays, whether it is an error or a warning, when it holds, the reason and the remedy. ``check``
runs the whole table over a deployment and returns every finding, so that a person mends all of them at once. A row sees one engine
as a :class:`Case`; reason and remedy are filled from its ``spec``, ``gpu``, ``shape`` and ``router``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from build_engines.gpus import Gpu
from build_engines.model_shape import ModelShape
from build_engines.spec import BatchPolicy, Deployment, EngineSpec, Flow, GpuPrecision, KvDtype, RouterSpec, Speculation

_AWQ = (GpuPrecision.INT4_AWQ, GpuPrecision.W4A8_AWQ)
_INT8 = (GpuPrecision.INT8_WO, GpuPrecision.INT8_SQ)
_FP8_FAMILY = (GpuPrecision.FP8, GpuPrecision.W4A8_AWQ, GpuPrecision.NVFP4)
_AWQ_GROUPS = (64, 128)  # those that the weight-only group-wise kernels are compiled for
_ACTIVATION_QUANTIZED = (GpuPrecision.INT8_SQ, GpuPrecision.FP8, GpuPrecision.NVFP4)
_MIN_ACTIVATION_SAMPLES = 128
_ROUTER_MODES = (Speculation.NONE, Speculation.DRAFT_TOKENS_EXTERNAL)
_GAINFUL_DRAFT_BATCH = 8


class Severity(str, Enum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Case:
    """One engine in its deployment."""

    spec: EngineSpec
    shape: ModelShape
    gpu: Gpu
    num_gpus: int
    flow: Flow
    router: RouterSpec

    @property
    def uneven_rows(self) -> dict[str, int]:
        """Quantized layers whose rows, on one rank, are no multiple of the group size."""
        if self.spec.precision not in _AWQ or self.spec.group_size < 1:
            return {}
        rows = self.shape.row_sizes(max(self.spec.tp, 1))
        return {layer: size for layer, size in rows.items() if size % self.spec.group_size}

    @property
    def uneven_layers(self) -> str:
        return ", ".join(f"{layer} ({size})" for layer, size in self.uneven_rows.items())

    @property
    def fitting_groups(self) -> str:
        rows = self.shape.row_sizes(max(self.spec.tp, 1)).values()
        fitting = [str(group) for group in _AWQ_GROUPS if all(row % group == 0 for row in rows)]
        return f"group size {' or '.join(fitting)}" if fitting else "another tp or precision int8_wo"


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    severity: Severity
    when: Callable[[Case], bool]
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Finding:
    """``engine`` is empty for what concerns the deployment as a whole."""

    rule: str
    severity: Severity
    engine: str
    reason: str
    remedy: str

    @property
    def line(self) -> str:
        return f"{self.severity.value} {self.rule}{f' ({self.engine})' if self.engine else ''}: {self.reason}; {self.remedy}"


def check(deployment: Deployment) -> tuple[Finding, ...]:
    """All findings, errors first, each group in the order of engines and rows."""
    findings = [*_check_deployment(deployment)]
    for spec in deployment.engines:
        case = Case(spec, deployment.shape(spec), deployment.gpu, deployment.num_gpus, deployment.flow, deployment.router)
        findings += [_finding(rule, case) for rule in RULES if rule.when(case)]
    return tuple(sorted(findings, key=lambda finding: finding.severity is Severity.WARNING))


def has_errors(findings: Iterable[Finding]) -> bool:
    return any(finding.severity is Severity.ERROR for finding in findings)


def _finding(rule: Rule, case: Case) -> Finding:
    reason, remedy = (
        text.format(case=case, spec=case.spec, shape=case.shape, gpu=case.gpu, router=case.router)
        for text in (rule.reason, rule.remedy)
    )
    return Finding(rule.name, rule.severity, case.spec.name, reason, remedy)


def _error(name: str, when: Callable[[Case], bool], reason: str, remedy: str) -> Rule:
    return Rule(name, Severity.ERROR, when, reason, remedy)


def _warning(name: str, when: Callable[[Case], bool], reason: str, remedy: str) -> Rule:
    return Rule(name, Severity.WARNING, when, reason, remedy)


_HARDWARE = (
    _error(
        "int4-on-blackwell",
        lambda c: c.gpu.is_blackwell and c.spec.precision in _AWQ,
        "the builder refuses INT4 weights on {gpu.name} (SM {gpu.sm})",
        "use precision nvfp4 or fp8",
    ),
    _error(
        "int8-on-blackwell",
        lambda c: c.gpu.is_blackwell and c.spec.precision in _INT8,
        "the builder refuses INT8 weights on {gpu.name} (SM {gpu.sm})",
        "use precision fp8",
    ),
    _error(
        "int8-kv-on-blackwell",
        lambda c: c.gpu.is_blackwell and c.spec.kv_dtype is KvDtype.INT8,
        "the builder refuses an INT8 KV cache on {gpu.name} (SM {gpu.sm})",
        "use kv_dtype fp8 with precision fp8 or nvfp4, or fp16",
    ),
    _error(
        "fp8-needs-sm89",
        lambda c: not c.gpu.has_fp8 and c.spec.precision in (GpuPrecision.FP8, GpuPrecision.W4A8_AWQ),
        "precision {spec.precision.value} needs FP8 units (SM 89 and above); {gpu.name} is SM {gpu.sm}",
        "use int4_awq or int8_wo",
    ),
    _error(
        "fp8-kv-needs-sm89",
        lambda c: not c.gpu.has_fp8 and c.spec.kv_dtype is KvDtype.FP8,
        "an FP8 KV cache needs SM 89 and above; {gpu.name} is SM {gpu.sm}",
        "use kv_dtype fp16",
    ),
    _error(
        "nvfp4-needs-blackwell",
        lambda c: not c.gpu.is_blackwell and c.spec.precision is GpuPrecision.NVFP4,
        "NVFP4 has kernels on Blackwell only; {gpu.name} is SM {gpu.sm}",
        "use int4_awq, or fp8 from SM 89 on",
    ),
)

_KV = (
    _error(
        "int8-kv-kills-reuse",
        lambda c: c.spec.kv_dtype is KvDtype.INT8 and c.spec.kv_reuse,
        "an INT8 KV cache makes the builder switch paged context attention off, and the runtime then switches KV reuse "
        "off without a word",
        "set kv_reuse: false to accept that, or use kv_dtype fp8 with FP8 weights, or fp16",
    ),
    _error(
        "int8-kv-kills-chunked-context",
        lambda c: c.spec.kv_dtype is KvDtype.INT8 and c.spec.chunked_context,
        "an INT8 KV cache makes the builder switch paged context attention off, and with it chunked context",
        "set chunked_context: false to accept that, or use kv_dtype fp16",
    ),
    _error(
        "fp8-kv-needs-fp8-weights",
        lambda c: (
            c.spec.kv_dtype is KvDtype.FP8 and c.spec.precision not in _FP8_FAMILY and (c.spec.kv_reuse or c.spec.chunked_context)
        ),
        "paged context attention takes an FP8 KV cache only beside fp8, w4a8_awq or nvfp4 weights; with "
        "{spec.precision.value} reuse and "
        "chunked context are lost",
        "use kv_dtype fp16",
    ),
    _error(
        "reuse-needs-paged-fmha",
        lambda c: c.spec.kv_reuse and not c.spec.paged_context_fmha,
        "KV reuse is switched off without a word when the engine has no paged context attention",
        "set paged_context_fmha: true, or kv_reuse: false",
    ),
    _error(
        "chunked-context-needs-paged-fmha",
        lambda c: c.spec.chunked_context and not c.spec.paged_context_fmha,
        "chunked context needs paged context attention",
        "set paged_context_fmha: true, or chunked_context: false",
    ),
    _error(
        "context-logits-kill-reuse",
        lambda c: c.spec.gather_context_logits and c.spec.kv_reuse,
        "an engine that gathers context logits never reuses KV blocks",
        "set gather_context_logits: false, or kv_reuse: false",
    ),
    _error(
        "tokens-per-block-power-of-two",
        lambda c: c.spec.tokens_per_block < 1 or bool(c.spec.tokens_per_block & (c.spec.tokens_per_block - 1)),
        "tokens_per_block is {spec.tokens_per_block}; the KV cache takes powers of two only",
        "use 32, TensorRT-LLM's default",
    ),
    _error(
        "tokens-per-block-differs",
        lambda c: c.spec.tokens_per_block != c.router.tokens_per_block,
        "blocks of the engine hold {spec.tokens_per_block} tokens and the router counts {router.tokens_per_block}, so "
        "reported cached tokens would be wrong",
        "give both the same tokens_per_block",
    ),
    _error(
        "kv-share-range",
        lambda c: not 0.0 < c.spec.kv_share <= 1.0,
        "kv_share is {spec.kv_share}; it is a part of the memory that is left",
        "give a number above 0 and at most 1",
    ),
    _error(
        "tenants-need-separate-blocks",
        lambda c: c.flow is Flow.TRTLLM and c.spec.kv_reuse and c.router.is_multi_tenant,
        "this backend has no salt for KV blocks, so tenants cannot be kept apart while blocks are reused",
        "set kv_reuse: false, or use flow llmapi, which takes a cache salt; router.is_multi_tenant: false declares that "
        "all callers are one",
    ),
)

_SPECULATION = (
    _error(
        "speculation-mode-not-served",
        lambda c: c.spec.speculation not in _ROUTER_MODES,
        "speculation {spec.speculation.value} needs heads or parameters that Tandem renders no configuration for",
        "use draft_tokens_external, which the router drives, or none",
    ),
    _error(
        "draft-mode-without-length",
        lambda c: c.spec.speculation is Speculation.DRAFT_TOKENS_EXTERNAL and c.spec.max_draft_len < 1,
        "an engine built with max_draft_len 0 refuses every draft token",
        "give max_draft_len, 8 for example",
    ),
    _error(
        "draft-length-without-mode",
        lambda c: c.spec.speculation is Speculation.NONE and c.spec.max_draft_len != 0,
        "max_draft_len {spec.max_draft_len} has no effect without a speculation mode",
        "set speculation: draft_tokens_external, or max_draft_len: 0",
    ),
    _error(
        "draft-needs-reuse",
        lambda c: c.spec.speculation is Speculation.DRAFT_TOKENS_EXTERNAL and not (c.spec.kv_reuse and c.spec.paged_context_fmha),
        "draft tokens come as a new request each time: without KV reuse the whole prompt is computed again for every draft",
        "set kv_reuse and paged_context_fmha to true",
    ),
    _error(
        "draft-with-context-logits",
        lambda c: c.spec.gather_context_logits and c.spec.max_draft_len > 0,
        "the builder refuses context logits together with draft tokens",
        "set gather_context_logits: false",
    ),
    _error(
        "draft-with-beams",
        lambda c: c.spec.max_draft_len > 0 and c.spec.max_beam_width > 1,
        "draft tokens are verified for one beam only",
        "set max_beam_width: 1",
    ),
    _error(
        "draft-on-llmapi",
        lambda c: c.flow is Flow.LLMAPI and c.spec.speculation is not Speculation.NONE,
        "the LLM API takes no draft tokens from outside",
        "set speculation: none",
    ),
    _error(
        "router-drafts-too-long",
        lambda c: c.spec.speculation is Speculation.DRAFT_TOKENS_EXTERNAL and c.router.max_draft_len > c.spec.max_draft_len,
        "the router may send {router.max_draft_len} draft tokens and the engine takes {spec.max_draft_len}",
        "raise the engine's max_draft_len or lower the router's",
    ),
    _warning(
        "draft-raises-num-tokens",
        lambda c: c.spec.max_draft_len > 0 and c.spec.max_num_tokens < c.spec.max_batch_size * (c.spec.max_draft_len + 1),
        "max_num_tokens {spec.max_num_tokens} is less than max_batch_size x (max_draft_len + 1); the builder raises it, "
        "and activations grow",
        "raise max_num_tokens yourself, so that the plan counts it, or lower max_batch_size",
    ),
    _warning(
        "draft-at-large-batch",
        lambda c: c.spec.max_draft_len > 0 and c.spec.max_batch_size > _GAINFUL_DRAFT_BATCH,
        "users see no gain or a loss from draft tokens at large batches (up to {spec.max_batch_size} here)",
        "keep the router's draft length adaptive, so that it falls to 0 under load",
    ),
    _warning(
        "draft-with-guided",
        lambda c: c.spec.max_draft_len > 0 and c.spec.is_guided,
        "the engine does not combine guided decoding with draft tokens",
        "nothing to do: the router sends no drafts for guided requests",
    ),
)

_GUIDED_AND_BATCHING = (
    _error(
        "guided-with-max-utilization",
        lambda c: c.spec.is_guided and c.spec.batch_policy is BatchPolicy.MAX_UTILIZATION,
        "a paused request restarts its grammar after the recompute, and its output no longer fits the schema "
        "(TensorRT-LLM issue 18891)",
        "use batch_policy guaranteed_no_evict, or guided_backend: none",
    ),
    _error(
        "guided-with-beams",
        lambda c: c.spec.is_guided and c.spec.max_beam_width > 1,
        "guided decoding does not work with beam search",
        "set max_beam_width: 1",
    ),
    _error(
        "guided-backend-unknown",
        lambda c: c.spec.guided_backend not in ("none", "xgrammar", "llguidance"),
        "guided_backend is {spec.guided_backend!r}; the server would not load",
        "use xgrammar or none (llguidance too, with flow llmapi)",
    ),
    _error(
        "guided-llguidance-on-trtllm",
        lambda c: c.flow is Flow.TRTLLM and c.spec.guided_backend == "llguidance",
        "the C++ backend knows xgrammar only; another name ends the load",
        "use xgrammar",
    ),
    _error(
        "beams-not-served",
        lambda c: c.spec.max_beam_width > 1,
        "Tandem's router asks for one beam; memory for {spec.max_beam_width} would be reserved for nothing",
        "set max_beam_width: 1; num_return_sequences gives several samples",
    ),
    _warning(
        "max-utilization-thrashes",
        lambda c: c.spec.batch_policy is BatchPolicy.MAX_UTILIZATION,
        "when KV blocks run out, requests are paused and computed again; users report that throughput collapses then",
        "use batch_policy guaranteed_no_evict",
    ),
    _error(
        "num-tokens-below-prompt",
        lambda c: not c.spec.chunked_context and c.spec.max_num_tokens < c.spec.max_seq_len,
        "without chunked context a prompt must fit into one step: {spec.max_num_tokens} tokens, while max_seq_len "
        "promises {spec.max_seq_len}",
        "raise max_num_tokens, or turn chunked_context on",
    ),
    _error(
        "num-tokens-below-batch",
        lambda c: c.spec.max_num_tokens < c.spec.max_batch_size,
        "one step of {spec.max_num_tokens} tokens cannot hold a token of each of {spec.max_batch_size} sequences",
        "raise max_num_tokens or lower max_batch_size",
    ),
    _error(
        "in-flight-above-batch",
        lambda c: c.router.max_in_flight > c.spec.max_batch_size,
        "the router keeps {router.max_in_flight} requests in flight and the engine runs {spec.max_batch_size}; the rest "
        "would wait where no order and no limit holds",
        "lower router.max_in_flight or raise max_batch_size",
    ),
    _error(
        "seq-len-above-model",
        lambda c: c.spec.max_seq_len > c.shape.max_position_embeddings,
        "max_seq_len {spec.max_seq_len} is more than the {shape.max_position_embeddings} positions of the model",
        "lower max_seq_len",
    ),
    _error(
        "logits-dtype",
        lambda c: c.spec.logits_dtype != "float32",
        "the rendered config.pbtxt says TYPE_FP32 for logits; an engine with {spec.logits_dtype} fails with its first response",
        "set logits_dtype: float32",
    ),
    _error(
        "normalized-log-probs",
        lambda c: c.spec.normalize_log_probs,
        "log-probabilities that are normalised within top-k are 0 for greedy decoding, so no confidence can be read from them",
        "set normalize_log_probs: false",
    ),
    _error(
        "sizes-positive",
        lambda c: (
            min(c.spec.max_batch_size, c.spec.max_num_tokens, c.spec.max_seq_len, c.spec.tp, c.spec.pp, c.spec.max_beam_width) < 1
            or c.spec.max_draft_len < 0
            or c.spec.calibration_samples < 1
        ),
        "a size is below 1 (max_draft_len below 0)",
        "give whole numbers above 0",
    ),
)

_MODEL = (
    _error(
        "qwen3-not-quantized-here",
        lambda c: c.flow is Flow.TRTLLM and c.shape.family == "qwen3" and c.spec.precision in (*_AWQ, *_INT8),
        "the engine flow lists Qwen3 with FP16, BF16, FP8 and NVFP4 only",
        "use precision fp8 or fp16, a Qwen2.5 or Llama 3 model, or flow llmapi",
    ),
    _error(
        "int8-on-llmapi",
        lambda c: c.flow is Flow.LLMAPI and c.spec.precision in _INT8,
        "the LLM API has no INT8 recipe",
        "use int4_awq, w4a8_awq or fp8, or flow trtllm",
    ),
    _error(
        "int8-kv-on-llmapi",
        lambda c: c.flow is Flow.LLMAPI and c.spec.kv_dtype is KvDtype.INT8,
        "the LLM API offers an FP8 KV cache, not an INT8 one",
        "use kv_dtype fp8 or fp16",
    ),
    _error(
        "group-size-kernel",
        lambda c: c.spec.precision in _AWQ and c.spec.group_size not in _AWQ_GROUPS,
        "the AWQ kernels are compiled for group sizes 64 and 128, not {spec.group_size}",
        "use {case.fitting_groups}",
    ),
    _error(
        "group-size-uneven",
        lambda c: bool(c.uneven_rows),
        "group size {spec.group_size} does not divide the rows of {case.uneven_layers} on each of {spec.tp} ranks; the "
        "export fails after the calibration",
        "use {case.fitting_groups}",
    ),
    _error(
        "heads-by-tp",
        lambda c: c.spec.tp > 0 and c.shape.num_heads % c.spec.tp != 0,
        "{shape.num_heads} attention heads cannot be split over tp {spec.tp}",
        "use a tp that divides the number of heads",
    ),
    _error(
        "kv-heads-by-tp",
        lambda c: c.spec.tp > 0 and c.shape.num_kv_heads % c.spec.tp != 0 and c.spec.tp % c.shape.num_kv_heads != 0,
        "{shape.num_kv_heads} KV heads can be neither split over nor copied to tp {spec.tp} ranks",
        "use a tp that divides the number of KV heads",
    ),
    _warning(
        "kv-heads-copied",
        lambda c: c.spec.tp > c.shape.num_kv_heads and c.spec.tp % c.shape.num_kv_heads == 0,
        "tp {spec.tp} is more than the {shape.num_kv_heads} KV heads: every rank keeps a copy of one, so more GPUs do "
        "not hold more tokens",
        "use tp {shape.num_kv_heads} with pp instead",
    ),
    _error(
        "layers-by-pp",
        lambda c: c.spec.pp > 0 and c.shape.num_layers % c.spec.pp != 0,
        "{shape.num_layers} layers cannot be split evenly over pp {spec.pp}",
        "use a pp that divides the number of layers",
    ),
    _warning(
        "calibration-capped",
        lambda c: c.spec.precision in _AWQ and c.spec.calibration_samples > 32,
        "AWQ calibration is capped to 32 samples; {spec.calibration_samples} are asked for",
        "set calibration_samples: 32",
    ),
    _warning(
        "calibration-small",
        lambda c: c.spec.precision in _ACTIVATION_QUANTIZED and c.spec.calibration_samples < _MIN_ACTIVATION_SAMPLES,
        "precision {spec.precision.value} fixes the range of activations by calibration; {spec.calibration_samples} "
        "samples see few outliers",
        "set calibration_samples: 512",
    ),
)

_PLACEMENT = (
    _error(
        "gpus-match-ranks",
        lambda c: len(c.spec.gpus) != c.spec.world_size,
        "tp {spec.tp} x pp {spec.pp} are {spec.world_size} ranks, and gpus lists {spec.gpus}",
        "list one GPU per rank",
    ),
    _error(
        "gpu-used-twice",
        lambda c: len(set(c.spec.gpus)) != len(c.spec.gpus),
        "gpus {spec.gpus} names one GPU twice for ranks of one engine",
        "list each GPU once",
    ),
    _error(
        "gpu-id-range",
        lambda c: any(not 0 <= gpu < c.num_gpus for gpu in c.spec.gpus),
        "gpus {spec.gpus} is outside the {case.num_gpus} GPUs of this deployment",
        "use ids from 0 on, or raise num_gpus",
    ),
)

RULES: tuple[Rule, ...] = (*_HARDWARE, *_KV, *_SPECULATION, *_GUIDED_AND_BATCHING, *_MODEL, *_PLACEMENT)


def _check_deployment(deployment: Deployment) -> Iterator[Finding]:
    yield from _vocabularies(deployment)
    if (
        deployment.flow is Flow.TRTLLM
        and not deployment.router.is_multi_tenant
        and any(spec.kv_reuse for spec in deployment.engines)
    ):
        yield Finding(
            "tenants-share-blocks",
            Severity.WARNING,
            "",
            "this backend has no salt for KV blocks: equal prefixes are shared between all callers, and a hit shows in "
            "the timing; "
            "requests that carry a tenant's salt are refused",
            "fine for one tenant; for several set router.is_multi_tenant and kv_reuse: false, or use flow llmapi",
        )
    for gpu, share in _kv_shares(deployment.engines).items():
        if share > 1.0 + 1e-9:
            yield Finding(
                "kv-shares-above-one",
                Severity.ERROR,
                "",
                f"the kv_share of the engines on GPU {gpu} add up to {share:.2f}; the last one to load would find no memory",
                "make them add up to at most 1",
            )


def _vocabularies(deployment: Deployment) -> Iterator[Finding]:
    """A prompt is tokenized once for all engines."""
    tokenizers = {spec.name: deployment.shape(spec).tokenizer for spec in deployment.engines}
    if len(set(tokenizers.values())) > 1:
        listed = ", ".join(f"{name}: {tokenizer}" for name, tokenizer in tokenizers.items())
        yield Finding(
            "vocabularies-differ",
            Severity.ERROR,
            "",
            f"the engines have different tokenizers ({listed}), and a prompt is tokenized once for all of them",
            "use models of one family",
        )


def _kv_shares(engines: Iterable[EngineSpec]) -> Mapping[int, float]:
    shares: dict[int, float] = {}
    for spec in engines:
        for gpu in spec.gpus:
            shares[gpu] = shares.get(gpu, 0.0) + spec.kv_share
    return shares
