"""Threads for work that must not slow down answers on the same cores: they run at a lower priority than the rest of the process.

Lower, not lowest: the checks in front of a compile are Python, and a thread that holds the interpreter lock and does not get to run
holds up the whole process.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

_NICE = 10


def background_pool(name: str, num_workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_workers, thread_name_prefix=name, initializer=_lower_priority)


def _lower_priority() -> None:
    """Of the calling thread only: on Linux a priority belongs to a thread."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
