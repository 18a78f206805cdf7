"""A few sampled answers of the real fast engine, each held against an independent validator; the benchmark takes thousands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from build_engines.ensure import ensure_engines
from build_engines.progress import make_reporter
from loadtest.bench.guided_runs import GuidedRuns
from loadtest.bench.guided_schemas import SCHEMAS
from tandem.guided.tokenizer import load_tokenizer
from tandem.models.openvino_decoder import load_decoder

pytestmark = pytest.mark.weights


def test_samples_when_temperature_is_high_then_all_validate() -> None:
    home = Path(os.environ.get("TANDEM_HOME", "~/.cache/tandem")).expanduser()
    engine_dir = ensure_engines(home, None, None, make_reporter())["fast_int8"]
    decoder = load_decoder(engine_dir, num_blocks=512, num_threads=2)
    runs = GuidedRuns(decoder, load_tokenizer(engine_dir, decoder.info.vocab_size), engine_dir)
    counts = runs.sample(num_samples=2, progress=lambda line: None)
    assert counts["invalid"] == 0
    assert counts["valid"] >= len(SCHEMAS)
