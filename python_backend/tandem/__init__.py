"""Tandem: LLM serving on two paths behind one model name."""

__version__ = "0.1.0"
