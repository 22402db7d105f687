"""Cores on which candidates are built while other candidates are timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

_MOST_LANES = 4


class BuildPass(NamedTuple):
    """``compiled`` is the code that Triton compiled for a candidate, or empty."""

    compiled: bytes = b""


class CompileLanes:
    """Threads that wait for builds, and the processors of these builds. All sessions of a referee share them."""

    def __init__(self, count: int, cpus: Sequence[int]) -> None:
        self.cpus = tuple(cpus)
        self.count = count
        self._threads = ThreadPoolExecutor(count, "compile lane") if count else None

    def submit(self, work: Callable[[], BuildPass]) -> Future[BuildPass] | None:
        """Run ``work`` when a lane is free; None if there are no lanes."""
        return None if self._threads is None else self._threads.submit(work)

    def close(self, *, wait: bool = True) -> None:
        """Start no more work, and ``wait`` for the work that has started."""
        if self._threads is not None:
            self._threads.shutdown(wait=wait, cancel_futures=True)


def siblings(cpu: int) -> set[int]:
    """Processors that share a core with ``cpu``, which is included."""
    try:
        listed = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
        ranges = [part.split("-") for part in listed.strip().split(",")]
        return {cpu}.union(*(range(int(first), int(last) + 1) for first, *_, last in ([*r, r[-1]] for r in ranges)))
    except (OSError, ValueError):
        return {cpu}


def pick_lanes(
    asked: int | str, cpus: Sequence[int], threads: int, siblings: Callable[[int], set[int]] = siblings
) -> tuple[int, Sequence[int]]:
    """The number of lanes, and their processors on cores that neither the referee's clock nor the workers use.

    Args:
        asked: a number, or "auto" for one for each processor left over, up to 4.
        cpus: processors that may be used, sorted; the first is the referee's, the last ``threads`` the workers'.
        siblings: returns the processors that share a core with one.
    """
    timed = {cpus[0], *cpus[-threads:]}
    left = [cpu for cpu in cpus if not siblings(cpu) & timed]
    if isinstance(asked, str):
        return min(len(left), _MOST_LANES), left
    return asked, left or cpus
