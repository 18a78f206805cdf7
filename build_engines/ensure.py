"""The one entry point of a start: all CPU engines present, whole and linked."""

from __future__ import annotations

from pathlib import Path

from build_engines.cache import EngineCache
from build_engines.engine_spec import CPU_ENGINES, FAST_ENGINES
from build_engines.progress import Reporter
from build_engines.weights import find_weights


def ensure_engines(home: Path, fast_model: str | None, slow_model: str | None, reporter: Reporter) -> dict[str, Path]:
    """Build what is missing or damaged; engine name -> its folder. ``current`` of every engine points at that folder.

    A model is a local folder or GGUF file; None means the default weights. The vocabularies of fast and slow may differ; their
    manifests tell (``tokenizer_sha256``). Raises: SetupError with one sentence.
    """
    cache = EngineCache(home, reporter)
    weights = {model: find_weights(model) for model in {fast_model, slow_model}}
    with cache.locked():
        return {
            spec.name: cache.ensure(weights[fast_model if spec.name in FAST_ENGINES else slow_model], spec) for spec in CPU_ENGINES
        }
