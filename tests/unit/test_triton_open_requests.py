"""Ids of open requests, stops that come early, late or twice; the watcher over clients."""

from __future__ import annotations

import threading
import time

from tandem.triton.cancellation import CancellationWatcher
from tandem.triton.open_requests import OpenRequests


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_id_when_used_twice_then_the_newest_owns_it():
    requests: OpenRequests[object] = OpenRequests()
    first, second = object(), object()
    requests.add("a", first)
    requests.add("a", second)
    requests.remove("a", first)
    assert requests.stop("a") is second
    requests.remove("a", second)
    assert len(requests) == 0


def test_stop_when_early_then_it_hits_once_and_only_for_a_while():
    clock = Clock()
    requests: OpenRequests[object] = OpenRequests(clock)
    assert requests.stop("a") is None
    assert requests.add("a", object())
    assert not requests.add("a", object())
    requests.stop("b")
    clock.now = 11.0
    assert not requests.add("b", object())


def test_stop_when_late_then_the_next_request_under_the_id_is_not_hit():
    requests: OpenRequests[object] = OpenRequests()
    request = object()
    requests.add("a", request)
    requests.remove("a", request)
    assert requests.stop("a") is None
    assert not requests.add("a", object())


def test_ids_when_many_are_remembered_then_the_oldest_go():
    requests: OpenRequests[object] = OpenRequests()
    for number in range(2000):
        requests.stop(f"s{number}")
    assert not requests.add("s0", object())
    assert requests.add("s1999", object())


def test_id_when_empty_then_never_kept():
    requests: OpenRequests[object] = OpenRequests()
    assert not requests.add("", object())
    assert len(requests) == 0


def test_watcher_when_a_client_goes_then_told_once_and_others_are_left_alone():
    watcher = CancellationWatcher(0.001)
    gone, told, asked = threading.Event(), [], threading.Event()
    watcher.watch(gone.is_set, lambda: told.append("gone"))

    def broken() -> bool:
        raise RuntimeError("no such request")

    watcher.watch(broken, lambda: told.append("broken"))

    def stays() -> bool:
        asked.set()
        return False

    key = watcher.watch(stays, lambda: told.append("stays"))
    gone.set()
    deadline = time.monotonic() + 5
    while not told and time.monotonic() < deadline:
        time.sleep(0.001)
    assert asked.wait(5)
    watcher.forget(key)
    watcher.forget(999)
    watcher.close()
    assert told == ["gone"]


def test_watcher_when_nothing_is_watched_then_it_sleeps():
    watcher = CancellationWatcher(0.001)
    started = time.thread_time()
    time.sleep(0.05)
    watcher.close()
    assert time.thread_time() - started < 0.05
