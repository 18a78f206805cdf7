"""Python's logging into the server's log."""

from __future__ import annotations

import logging

import triton_python_backend_utils as pb_utils


class _TritonHandler(logging.Handler):
    """Hands records of level INFO and above to Triton's logger, tracebacks included."""

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if record.levelno >= logging.ERROR:
            pb_utils.Logger.log_error(text)
        elif record.levelno >= logging.WARNING:
            pb_utils.Logger.log_warn(text)
        else:
            pb_utils.Logger.log_info(text)


def use_triton_log(model_name: str) -> None:
    """Send everything under the logger ``tandem`` to the server's log, with the model's name. Once per model process."""
    logger = logging.getLogger("tandem")
    if any(isinstance(handler, _TritonHandler) for handler in logger.handlers):
        return
    handler = _TritonHandler(logging.INFO)
    handler.setFormatter(logging.Formatter(f"{model_name}: %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
