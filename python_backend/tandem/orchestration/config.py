"""What the router's service must know before the first request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath

from tandem.capabilities import ALL_CAPABILITIES, Capabilities, TenantGuard
from tandem.errors import SetupError
from tandem.guided.gate import GuideGate
from tandem.orchestration.admission import AdmissionConfig
from tandem.text.tokenizer import TOKENIZER_FILES, Tokenizer
from tandem.types import Path


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """One engine model. ``max_seq_len`` counts prompt and completion together, as the engine enforces it.

    ``kv_tokens``: what its KV cache holds, for predictions; None: not known. ``capabilities``: a request that needs another is
    refused.
    """

    name: str
    max_seq_len: int
    tokenizer: Tokenizer
    kv_tokens: int | None = None
    capabilities: Capabilities = ALL_CAPABILITIES


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """The engines that may be called, all with one vocabulary, and the defaults of requests.

    ``default_max_tokens`` bounds the answer of a request that states no ``max_tokens`` (the rest of the context bounds it too).
    ``admission``: how many requests each engine gets at a time, and who is next. ``guides``: what they can be guided by.
    ``tenants``: watches engines that may serve one tenant only.
    """

    engines: tuple[EngineInfo, ...]
    default_max_tokens: int = 512
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    guides: GuideGate = field(default_factory=GuideGate)
    tenants: TenantGuard = field(default_factory=TenantGuard)

    def __post_init__(self) -> None:
        if not self.engines:
            raise SetupError("the router has no engine to call; list at least one")
        if self.default_max_tokens < 1:
            raise SetupError(f"default_max_tokens is {self.default_max_tokens}; give a whole number of at least 1")
        first = self.engines[0]
        for engine in self.engines:
            if engine.max_seq_len < 2:
                raise SetupError(f"{engine.name} has max_seq_len {engine.max_seq_len}; it must hold a prompt and an answer")
            if engine.tokenizer.fingerprint != first.tokenizer.fingerprint:
                raise SetupError(
                    f"{first.name} and {engine.name} have different tokenizers, but prompts are tokenized once for all engines; "
                    "build the engines from models of one family"
                )

    @property
    def tokenizer(self) -> Tokenizer:
        """The one vocabulary of all engines."""
        return self.engines[0].tokenizer

    def engine(self, name: str) -> EngineInfo:
        """Raises: KeyError for an engine that is not listed."""
        for engine in self.engines:
            if engine.name == name:
                return engine
        raise KeyError(name)

    def check_paths(self, paths: Mapping[str, Path]) -> None:
        """Raises: SetupError when the rules may choose an engine that is not listed."""
        known = {engine.name for engine in self.engines}
        for name in paths:
            if name not in known:
                raise SetupError(f"the rules name the engine {name}, which is not served; known are {', '.join(sorted(known))}")


def load_tokenizers(folders: Mapping[str, FilePath]) -> dict[str, Tokenizer]:
    """The tokenizer of each engine folder, by engine name. Engines whose files are equal share one object, which is large.

    Raises: SetupError naming the file that is missing or broken.
    """
    by_content: dict[tuple[bytes, ...], Tokenizer] = {}
    loaded: dict[str, Tokenizer] = {}
    for name, folder in folders.items():
        content = tuple(_content(folder / file) for file in TOKENIZER_FILES)
        if content not in by_content:
            by_content[content] = Tokenizer.load(folder)
        loaded[name] = by_content[content]
    return loaded


def _content(path: FilePath) -> bytes:
    """The content of a file, empty where there is none: whether one is missing is for the loader to say."""
    return path.read_bytes() if path.is_file() else b""
