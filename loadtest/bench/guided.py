"""``tandem bench guided``: what guided decoding costs and whether it holds, on the engines of this machine.

``mask_us`` are masks along the instances of the suite in ``--data`` (a maskbench folder); ``wrapper_us`` is the median of what
ours takes longer than llguidance's own at the same place (the mean beside it is swayed by the few masks that take milliseconds).
``compile_ratio`` is the median over schemas of our compile, checks included, over llguidance's own. ``forced_token_share`` is of
the tokens of valid instances of function-call schemas. ``tok_s_ratio_vs_free`` compares answers to twenty schemas with free text
of the same length, in turns. ``samples`` are answers at temperature 1.5, each held against jsonschema. ``bombs``: the worst check
or compile of forty, and what all of them, one after another beside four running streams, do to the streams' TPOT p99. Without
``--data`` the figures of the suite are null.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

from build_engines.ensure import ensure_engines
from build_engines.progress import make_reporter
from loadtest.bench import Progress
from loadtest.bench.guided_bombs import bombs
from loadtest.bench.guided_runs import GuidedRuns
from loadtest.bench.guided_suite import SuiteFigures, quantiles, run_suite
from tandem.config import tandem_home
from tandem.errors import InvalidRequest
from tandem.guided.capabilities import CAPABILITIES
from tandem.guided.check import check_guide
from tandem.guided.compiler import GrammarCompiler
from tandem.guided.limits import GuideLimits
from tandem.guided.tokenizer import load_tokenizer
from tandem.models.openvino_decoder import load_decoder

_ENGINE = "fast_int8"
_NUM_BLOCKS = 512


def run(quick: bool, progress: Progress, data: Path | None = None) -> dict[str, Any]:
    """Measure; ``quick`` takes every tenth schema and few samples and is for trying out only. ``data``: a maskbench folder."""
    engine_dir = ensure_engines(tandem_home(), None, None, make_reporter())[_ENGINE]
    decoder = load_decoder(engine_dir, num_blocks=_NUM_BLOCKS, num_threads=os.cpu_count() or 1)
    tokenizer = load_tokenizer(engine_dir, decoder.info.vocab_size)
    suite = None if data is None else run_suite(data, tokenizer, step=10 if quick else 1, progress=progress)
    bomb_figures = _compile_bombs(GrammarCompiler(tokenizer), progress)
    runs = GuidedRuns(decoder, tokenizer, engine_dir)
    speed = runs.compare_with_free_text(num_rounds=1 if quick else 5, progress=progress)
    bomb_figures["tpot_p99_ratio"] = runs.compare_beside_bombs(num_rounds=1 if quick else 5, progress=progress)
    samples = runs.sample(num_samples=4 if quick else 200, progress=progress)
    figures: dict[str, Any] = {
        "mask_us": quantiles(suite.mask_us if suite else []),
        "own_mask_us": quantiles(suite.own_mask_us if suite else []),
        "wrapper_us": round(median(_differences(suite)), 3) if suite and suite.mask_us else None,
        "wrapper_us_mean": round(mean(_differences(suite)), 3) if suite and suite.mask_us else None,
        "compile_ms": quantiles(suite.compile_ms if suite else []),
        "own_compile_ms": quantiles(suite.own_compile_ms if suite else []),
        "compile_ratio": None,
        "accepted_invalid": suite.accepted_invalid if suite else None,
        "forced_token_share": round(suite.num_call_forced / suite.num_call_tokens, 4) if suite and suite.num_call_tokens else None,
        **speed,
        "samples": samples,
        "bombs": bomb_figures,
    }
    if suite and suite.compile_ms:
        ratios = [ours / own for ours, own in zip(suite.compile_ms, suite.own_compile_ms, strict=True)]
        figures["compile_ratio"] = round(median(ratios), 3)
        figures["compile_ratio_of_sums"] = round(sum(suite.compile_ms) / sum(suite.own_compile_ms), 3)
        figures["suite"] = {
            "schemas": suite.num_schemas,
            "supported": suite.num_supported,
            "own_supported": suite.num_own_supported,
            "refused": suite.num_refused,
            "crashes": suite.num_crashes,
            "time_outs": suite.num_time_outs,
            "invalid_instances": suite.num_invalid,
            "valid_instances": suite.num_valid,
            "rejected_valid": suite.rejected_valid,
            "masks": len(suite.mask_us),
            "forced_token_share": round(suite.num_forced / max(suite.num_tokens, 1), 4),
            "wrong": suite.wrong,
        }
    return figures


def _compile_bombs(compiler: GrammarCompiler, progress: Progress) -> dict[str, Any]:
    """Check and compile each; wall time, and growth of the process."""
    refused, worst_ms, worst_mb = 0, 0.0, 0.0
    guides = bombs()
    for name, guide in guides.items():
        started, rss_before = time.perf_counter(), _rss_mb()
        try:
            check_guide(guide.type.value, guide.text, CAPABILITIES["cpu"], GuideLimits())
            check_ms = (time.perf_counter() - started) * 1e3
            compiler.compile(guide)
            compile_ms = (time.perf_counter() - started) * 1e3 - check_ms
        except InvalidRequest:
            refused += 1
            check_ms, compile_ms = (time.perf_counter() - started) * 1e3, 0.0
        grown_mb = _rss_mb() - rss_before
        progress(f"bomb {name}: {check_ms:.1f} ms to check, {compile_ms:.1f} ms to compile, {grown_mb:.1f} MB")
        worst_ms, worst_mb = max(worst_ms, check_ms, compile_ms), max(worst_mb, grown_mb)
    return {"num": len(guides), "refused": refused, "worst_ms": round(worst_ms, 1), "worst_mb": round(worst_mb, 1)}


def _differences(suite: SuiteFigures) -> list[float]:
    return [ours - own for ours, own in zip(suite.mask_us, suite.own_mask_us, strict=True)]


def _rss_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
