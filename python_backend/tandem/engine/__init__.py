"""In-flight batching over a paged decoder: token ids in, token ids out."""

from tandem.engine.async_engine import AsyncEngine, Sink
from tandem.engine.config import EngineConfig
from tandem.engine.engine import LLMEngine
from tandem.engine.metrics import EngineStats

__all__ = ["AsyncEngine", "EngineConfig", "EngineStats", "LLMEngine", "Sink"]
