"""What the process of a gateway writes to stderr: its own lines, and only warnings of the libraries."""

from __future__ import annotations

import logging


def set_up_logging() -> None:
    """Call once, from the entry point of a process."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for library in ("httpx", "uvicorn"):
        logging.getLogger(library).setLevel(logging.WARNING)
