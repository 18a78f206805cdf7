"""The one place where our exceptions become Triton errors and Triton's errors become ours."""

from __future__ import annotations

import logging

import triton_python_backend_utils as pb_utils

from tandem.errors import EngineFailure, TandemError, from_wire, to_wire

_log = logging.getLogger(__name__)

_CODES = frozenset(("INVALID_ARG", "NOT_FOUND", "UNSUPPORTED", "UNAVAILABLE", "CANCELLED", "INTERNAL"))


def to_triton(error: TandemError) -> pb_utils.TritonError:
    """The code of the class and one line of text that :func:`tandem.errors.from_wire` reads back."""
    assert error.triton_code in _CODES
    # Looked up late: Triton adds its classes to the module only after it has imported model.py.
    return pb_utils.TritonError(to_wire(error), getattr(pb_utils.TritonError, error.triton_code))


def from_child(engine: str, error: pb_utils.TritonError) -> TandemError:
    """The error of a BLS child. Triton 2.51 hands every child error on as INTERNAL, so only the text tells what it was."""
    known = from_wire(error.message())
    if known is not None:
        return known
    _log.error("the engine %s failed: %s", engine, error.message())
    return EngineFailure(f"the engine {engine} is not able to answer; try again")


def from_exception(error: Exception, what: str) -> TandemError:
    """What the caller is told; an exception that is not ours goes to the log with its traceback and to nobody else."""
    if isinstance(error, TandemError):
        return error
    _log.error("%s failed", what, exc_info=error)
    return EngineFailure(f"{what} failed after an inner error; try again")
