"""What no order can beat: the least target that all but a share of the requests can meet, in hindsight.

One server works at a fixed pace on jobs that come over time and have the same target. Serving in order of arrival, and leaving out
the job whose absence helps most whenever one is late, makes the number of late jobs least (Kise, Ibaraki, Mine 1978, "A solvable
case of the one-machine scheduling problem with ready and due times"; equal targets are agreeable due times, and interrupting jobs
does not help then). A job left out is late, however late. Real orders know neither the future nor may they let a job wait forever.
"""

from __future__ import annotations

from collections.abc import Sequence

_NUM_HALVINGS = 24


def num_late(at_s: Sequence[float], work_s: Sequence[float], target_s: float) -> int:
    """The least number of jobs that end later than ``target_s`` after they came. ``at_s`` ascends."""
    late = 0
    starts: list[float] = []
    kept: list[tuple[float, float]] = []  # (at, work) of the busy period
    end_s = 0.0
    for at, work in zip(at_s, work_s, strict=True):
        if at >= end_s:
            starts, kept, end_s = [], [], at
        starts.append(end_s)
        kept.append((at, work))
        end_s += work
        if end_s - at > target_s:
            late += 1
            del kept[_most_helpful(starts, kept)]
            starts, end_s = _schedule(kept)
    return late


def least_target_s(at_s: Sequence[float], work_s: Sequence[float], share: float) -> float:
    """The least target that all but ``share`` of the jobs can meet, to within a ten-thousandth."""
    allowed = int(share * len(at_s))
    low, high = 0.0, at_s[-1] - at_s[0] + sum(work_s)
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        if num_late(at_s, work_s, middle) <= allowed:
            high = middle
        else:
            low = middle
    return high


def _most_helpful(starts: Sequence[float], kept: Sequence[tuple[float, float]]) -> int:
    """Without it the last one ends earliest: by its work, but no job after it can start before it came."""
    best, most, room = len(kept) - 1, -1.0, float("inf")
    for number in range(len(kept) - 1, -1, -1):
        gain = min(kept[number][1], room)
        if gain > most:
            best, most = number, gain
        room = min(room, starts[number] - kept[number][0])
    return best


def _schedule(kept: Sequence[tuple[float, float]]) -> tuple[list[float], float]:
    starts, end_s = [], 0.0
    for at, work in kept:
        starts.append(max(end_s, at))
        end_s = starts[-1] + work
    return starts, end_s
