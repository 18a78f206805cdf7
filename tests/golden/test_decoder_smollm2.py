"""The ``slow`` CPU engine (f32) gives the tokens that transformers gives for the same weights, whatever else is in its batches."""

import json
import os
from pathlib import Path

import pytest

from build_engines.ensure import ensure_engines
from build_engines.progress import make_reporter
from tandem.models.openvino_decoder import load_decoder
from tests.paged_driver import greedy_alone, greedy_mixed

GOLDEN = json.loads((Path(__file__).parent / "smollm2_greedy.json").read_text(encoding="utf-8"))
CASES = GOLDEN["cases"]
NUM_TOKENS = 48
# An f16 cache and other kernels move a logit by some thousandths; a closer call could go either way without a fault.
SMALLEST_GAP = 0.01

pytestmark = pytest.mark.weights


@pytest.fixture(scope="module")
def engines():
    home = Path(os.environ.get("TANDEM_HOME", "~/.cache/tandem")).expanduser()
    return ensure_engines(home, None, None, make_reporter())


@pytest.fixture(scope="module", params=["f16", "f32"])
def decoder(engines, request):
    return load_decoder(engines["slow"], kv_cache_dtype=request.param, num_blocks=64, num_threads=2)


def test_golden_list_when_read_then_holds_no_near_tie():
    assert len(CASES) == 8
    for case in CASES:
        assert len(case["token_ids"]) == len(case["gaps"]) == NUM_TOKENS
        assert min(case["gaps"]) > SMALLEST_GAP, case["question"]


@pytest.mark.parametrize("chunk_tokens", [None, 7])
def test_tokens_when_alone_then_equal_transformers(decoder, chunk_tokens):
    for case in CASES:
        assert greedy_alone(decoder, case["prompt_ids"], NUM_TOKENS, chunk_tokens=chunk_tokens) == case["token_ids"]


@pytest.mark.parametrize("seed", [0, 1])
def test_tokens_when_batches_are_mixed_then_equal_transformers(decoder, seed):
    answers = greedy_mixed(decoder, [case["prompt_ids"] for case in CASES], NUM_TOKENS, seed=seed)
    assert answers == [case["token_ids"] for case in CASES]


@pytest.mark.parametrize("engine", ["fast_int8", "fast_int4"])
def test_quantized_tokens_when_batches_are_mixed_then_equal_those_alone(engines, engine):
    decoder = load_decoder(engines[engine], num_blocks=64, num_threads=2)
    prompts = [case["prompt_ids"] for case in CASES[:4]]
    alone = [greedy_alone(decoder, prompt, 24) for prompt in prompts]
    assert greedy_mixed(decoder, prompts, 24, seed=0) == alone
