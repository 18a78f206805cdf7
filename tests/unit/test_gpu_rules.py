"""The rule table, row by row: one deployment that is right, and what each single change of it makes of it."""

from __future__ import annotations

import dataclasses

import pytest

from build_engines.gpus import GPUS
from build_engines.model_shape import SHAPES
from build_engines.rules import RULES, Severity, check
from build_engines.spec import (
    BatchPolicy,
    Deployment,
    EngineSpec,
    Flow,
    GpuPrecision,
    KvDtype,
    RouterSpec,
    Speculation,
)

P, K, S = GpuPrecision, KvDtype, Speculation
QWEN7, QWEN14, QWEN32, QWEN72 = (f"Qwen/Qwen2.5-{size}B-Instruct" for size in (7, 14, 32, 72))
QWEN3, LLAMA8, LLAMA70, SMOL = (
    "Qwen/Qwen3-8B",
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.3-70B-Instruct",
    "HuggingFaceTB/SmolLM2-135M-Instruct",
)
EXTERNAL = {"speculation": S.DRAFT_TOKENS_EXTERNAL, "max_draft_len": 4}
TP2, TP4, TP8 = ({"tp": tp, "gpus": tuple(range(tp))} for tp in (2, 4, 8))


def deployment(gpu="h100", flow=Flow.TRTLLM, num_gpus=8, router=None, **changes) -> Deployment:
    """One engine, right in every respect for an H100: INT4 AWQ of a 7B model."""
    values = {"name": "fast_int4", "model": QWEN7, "precision": P.INT4_AWQ, "max_batch_size": 8, "max_seq_len": 8192}
    spec = EngineSpec(**{**values, **changes})
    default = {"max_in_flight": 8, "is_multi_tenant": False, **(router or {})}
    return Deployment("test", flow, GPUS[gpu], num_gpus, RouterSpec(**default), (spec,), {spec.model: SHAPES[spec.model]})


# (what is asked for, the rules that must answer). "tenants-share-blocks" is a standing warning of the C++ backend and left out.
ROWS = [
    # precision and GPU
    ({}, []),
    ({"precision": P.INT8_WO}, []),
    ({"precision": P.INT8_SQ, "calibration_samples": 512}, []),
    ({"precision": P.INT8_SQ}, ["calibration-small"]),
    ({"precision": P.W4A8_AWQ}, []),
    ({"precision": P.FP8, "calibration_samples": 512}, []),
    ({"precision": P.FP8}, ["calibration-small"]),
    ({"precision": P.FP16}, []),
    ({"precision": P.NVFP4, "calibration_samples": 512}, ["nvfp4-needs-blackwell"]),
    ({"gpu": "b200"}, ["int4-on-blackwell"]),
    ({"gpu": "b200", "precision": P.W4A8_AWQ}, ["int4-on-blackwell"]),
    ({"gpu": "b200", "precision": P.INT8_WO}, ["int8-on-blackwell"]),
    ({"gpu": "b200", "precision": P.INT8_SQ, "calibration_samples": 512}, ["int8-on-blackwell"]),
    ({"gpu": "b200", "precision": P.FP8, "calibration_samples": 512}, []),
    ({"gpu": "b200", "precision": P.NVFP4, "calibration_samples": 512}, []),
    ({"gpu": "b200", "precision": P.FP16}, []),
    ({"gpu": "a100-80"}, []),
    ({"gpu": "a100-80", "precision": P.FP8, "calibration_samples": 512}, ["fp8-needs-sm89"]),
    ({"gpu": "a10", "precision": P.W4A8_AWQ}, ["fp8-needs-sm89"]),
    ({"gpu": "a10", "precision": P.INT8_WO}, []),
    ({"gpu": "l4", "precision": P.FP8, "calibration_samples": 512}, []),
    ({"gpu": "l40s", "precision": P.W4A8_AWQ}, []),
    ({"gpu": "h200", "precision": P.NVFP4, "calibration_samples": 512}, ["nvfp4-needs-blackwell"]),
    # KV cache
    ({"kv_dtype": K.INT8}, ["int8-kv-kills-reuse", "int8-kv-kills-chunked-context"]),
    ({"kv_dtype": K.INT8, "kv_reuse": False}, ["int8-kv-kills-chunked-context"]),
    ({"kv_dtype": K.INT8, "chunked_context": False}, ["int8-kv-kills-reuse"]),
    ({"kv_dtype": K.INT8, "kv_reuse": False, "chunked_context": False}, []),
    (
        {"kv_dtype": K.INT8, "gpu": "b200", "precision": P.FP16, "kv_reuse": False, "chunked_context": False},
        ["int8-kv-on-blackwell"],
    ),
    ({"kv_dtype": K.FP8}, ["fp8-kv-needs-fp8-weights"]),
    ({"kv_dtype": K.FP8, "kv_reuse": False, "chunked_context": False}, []),
    ({"kv_dtype": K.FP8, "precision": P.INT8_WO}, ["fp8-kv-needs-fp8-weights"]),
    ({"kv_dtype": K.FP8, "precision": P.FP8, "calibration_samples": 512}, []),
    ({"kv_dtype": K.FP8, "precision": P.W4A8_AWQ}, []),
    ({"kv_dtype": K.FP8, "precision": P.NVFP4, "gpu": "b200", "calibration_samples": 512}, []),
    ({"kv_dtype": K.FP8, "gpu": "a100-80"}, ["fp8-kv-needs-sm89", "fp8-kv-needs-fp8-weights"]),
    ({"paged_context_fmha": False}, ["reuse-needs-paged-fmha", "chunked-context-needs-paged-fmha"]),
    ({"paged_context_fmha": False, "kv_reuse": False}, ["chunked-context-needs-paged-fmha"]),
    ({"paged_context_fmha": False, "chunked_context": False}, ["reuse-needs-paged-fmha"]),
    ({"paged_context_fmha": False, "kv_reuse": False, "chunked_context": False}, []),
    ({"gather_context_logits": True}, ["context-logits-kill-reuse"]),
    ({"gather_context_logits": True, "kv_reuse": False}, []),
    ({"tokens_per_block": 48, "router": {"tokens_per_block": 48}}, ["tokens-per-block-power-of-two"]),
    ({"tokens_per_block": 0, "router": {"tokens_per_block": 0}}, ["tokens-per-block-power-of-two"]),
    ({"tokens_per_block": 64}, ["tokens-per-block-differs"]),
    ({"tokens_per_block": 64, "router": {"tokens_per_block": 64}}, []),
    ({"kv_share": 0.0}, ["kv-share-range"]),
    ({"kv_share": 1.5}, ["kv-share-range", "kv-shares-above-one"]),
    ({"kv_share": 1.0}, []),
    ({"router": {"is_multi_tenant": True}}, ["tenants-need-separate-blocks"]),
    ({"router": {"is_multi_tenant": True}, "kv_reuse": False}, []),
    ({"router": {"is_multi_tenant": True}, "flow": Flow.LLMAPI}, []),
    # speculation
    ({**EXTERNAL}, ["draft-with-guided"]),
    ({**EXTERNAL, "guided_backend": "none"}, []),
    ({**EXTERNAL, "max_draft_len": 0}, ["draft-mode-without-length"]),
    ({"max_draft_len": 4}, ["draft-length-without-mode", "draft-with-guided"]),
    ({**EXTERNAL, "kv_reuse": False, "guided_backend": "none"}, ["draft-needs-reuse"]),
    (
        {**EXTERNAL, "gather_context_logits": True, "guided_backend": "none"},
        ["context-logits-kill-reuse", "draft-with-context-logits"],
    ),
    ({**EXTERNAL, "max_beam_width": 2, "guided_backend": "none"}, ["draft-with-beams", "beams-not-served"]),
    ({**EXTERNAL, "guided_backend": "none", "router": {"max_draft_len": 8}}, ["router-drafts-too-long"]),
    ({**EXTERNAL, "guided_backend": "none", "router": {"max_draft_len": 4}}, []),
    ({**EXTERNAL, "guided_backend": "none", "max_batch_size": 64}, ["draft-at-large-batch"]),
    (
        {**EXTERNAL, "guided_backend": "none", "max_batch_size": 256, "max_num_tokens": 1024},
        ["draft-raises-num-tokens", "draft-at-large-batch"],
    ),
    ({"speculation": S.MEDUSA}, ["speculation-mode-not-served"]),
    ({"speculation": S.EAGLE}, ["speculation-mode-not-served"]),
    ({"speculation": S.LOOKAHEAD}, ["speculation-mode-not-served"]),
    ({**EXTERNAL, "guided_backend": "none", "flow": Flow.LLMAPI}, ["draft-on-llmapi"]),
    # guided decoding and batching
    ({"batch_policy": BatchPolicy.MAX_UTILIZATION}, ["guided-with-max-utilization", "max-utilization-thrashes"]),
    ({"batch_policy": BatchPolicy.MAX_UTILIZATION, "guided_backend": "none"}, ["max-utilization-thrashes"]),
    ({"max_beam_width": 2}, ["guided-with-beams", "beams-not-served"]),
    ({"max_beam_width": 2, "guided_backend": "none"}, ["beams-not-served"]),
    ({"guided_backend": "outlines"}, ["guided-backend-unknown"]),
    ({"guided_backend": "llguidance"}, ["guided-llguidance-on-trtllm"]),
    ({"guided_backend": "llguidance", "flow": Flow.LLMAPI}, []),
    ({"guided_backend": "none"}, []),
    ({"chunked_context": False}, []),
    ({"chunked_context": False, "max_num_tokens": 4096}, ["num-tokens-below-prompt"]),
    ({"max_num_tokens": 4096}, []),
    ({"max_num_tokens": 4}, ["num-tokens-below-batch"]),
    ({"router": {"max_in_flight": 64}}, ["in-flight-above-batch"]),
    ({"max_seq_len": 65536}, ["seq-len-above-model"]),
    ({"max_seq_len": 65536, "model": LLAMA8}, []),
    ({"logits_dtype": "float16"}, ["logits-dtype"]),
    ({"normalize_log_probs": True}, ["normalized-log-probs"]),
    ({"max_batch_size": 0}, ["in-flight-above-batch", "sizes-positive"]),
    ({"max_draft_len": -1}, ["draft-length-without-mode", "sizes-positive"]),
    # model
    ({"model": QWEN3}, ["qwen3-not-quantized-here"]),
    ({"model": QWEN3, "precision": P.INT8_WO}, ["qwen3-not-quantized-here"]),
    ({"model": QWEN3, "precision": P.FP8, "calibration_samples": 512}, []),
    ({"model": QWEN3, "flow": Flow.LLMAPI}, []),
    ({"precision": P.INT8_WO, "flow": Flow.LLMAPI}, ["int8-on-llmapi"]),
    ({"kv_dtype": K.INT8, "flow": Flow.LLMAPI, "kv_reuse": False, "chunked_context": False}, ["int8-kv-on-llmapi"]),
    ({"model": SMOL}, ["group-size-uneven"]),
    ({"model": SMOL, "group_size": 64}, []),
    ({"model": SMOL, "group_size": 0}, ["group-size-kernel"]),
    ({"model": SMOL, "group_size": -1}, ["group-size-kernel"]),
    ({"model": SMOL, "group_size": 0, "precision": P.INT8_WO}, []),
    ({"group_size": 32}, ["group-size-kernel"]),
    ({"model": QWEN72, **TP2}, ["group-size-uneven"]),
    ({"model": QWEN72, **TP2, "group_size": 64}, []),
    ({"model": QWEN7, **TP8}, ["heads-by-tp", "kv-heads-copied", "group-size-uneven"]),
    ({"model": QWEN7, **TP4}, []),
    ({"model": LLAMA70, **TP8}, []),
    ({"tp": 3, "gpus": (0, 1, 2)}, ["heads-by-tp", "kv-heads-by-tp", "group-size-uneven"]),
    ({"pp": 2, "gpus": (0, 1)}, []),
    ({"pp": 3, "gpus": (0, 1, 2)}, ["layers-by-pp"]),
    ({"calibration_samples": 512}, ["calibration-capped"]),
    ({"calibration_samples": 0}, ["sizes-positive"]),
    # placement
    ({"tp": 2}, ["gpus-match-ranks"]),
    ({"gpus": (0, 1)}, ["gpus-match-ranks"]),
    ({"tp": 2, "gpus": (0, 0)}, ["kv-shares-above-one", "gpu-used-twice"]),
    ({"gpus": (8,)}, ["gpu-id-range"]),
    ({"gpus": (-1,)}, ["gpu-id-range"]),
    ({"gpus": (1,), "num_gpus": 1}, ["gpu-id-range"]),
]


def names(found) -> set[str]:
    return {finding.rule for finding in found} - {"tenants-share-blocks"}


@pytest.mark.parametrize(("changes", "expected"), ROWS, ids=[f"{number:03}" for number in range(len(ROWS))])
def test_rules_when_one_thing_changes_then_exactly_these_answer(changes, expected):
    assert names(check(deployment(**changes))) == set(expected)


def test_rows_when_counted_then_at_least_100_and_every_rule_answers_and_stays_silent():
    assert len(ROWS) >= 100
    for rule in RULES:
        assert any(rule.name in expected for _, expected in ROWS), f"no row makes {rule.name} answer"
        assert any(rule.name not in expected for _, expected in ROWS), f"{rule.name} always answers"
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_findings_when_shown_then_reason_and_remedy_are_filled():
    for changes, _ in ROWS:
        for finding in check(deployment(**changes)):
            assert "{" not in finding.line, finding.line
            assert finding.reason, finding.remedy
            assert ";" in finding.line


def test_findings_when_several_then_errors_come_first():
    severities = [finding.severity for finding in check(deployment(calibration_samples=512, gpu="b200"))]
    assert severities == sorted(severities, key=lambda severity: severity is Severity.WARNING)
    assert severities[0] is Severity.ERROR


def test_group_size_when_uneven_then_layers_sizes_and_a_fitting_one_are_named():
    (finding,) = (f for f in check(deployment(model=SMOL)) if f.rule == "group-size-uneven")
    assert "o_proj (576)" in finding.reason
    assert "128" in finding.reason
    assert finding.remedy == "use group size 64"


def test_engines_when_their_vocabularies_differ_then_error():
    one = deployment()
    other = dataclasses.replace(one.engines[0], name="slow", model=LLAMA8, kv_share=0.1)
    mixed = dataclasses.replace(one, engines=(one.engines[0], other), shapes={**one.shapes, LLAMA8: SHAPES[LLAMA8]})
    assert names(check(mixed)) == {"vocabularies-differ"}


def test_tenants_when_blocks_are_shared_then_a_standing_warning():
    assert "tenants-share-blocks" in {finding.rule for finding in check(deployment())}
    assert "tenants-share-blocks" not in {finding.rule for finding in check(deployment(kv_reuse=False))}
    assert "tenants-share-blocks" not in {finding.rule for finding in check(deployment(flow=Flow.LLMAPI))}
