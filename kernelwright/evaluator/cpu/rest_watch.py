"""Watches where a frozen worker was stopped: at the door, or in code of its own.

A worker that is done with its calls waits in the door's library, where acknowledging and waiting are one function.
While it is frozen, the operating system shows where each of its tasks was stopped (``/proc/<pid>/task/<tid>/syscall``,
see proc_pid_syscall(5)). The worker cannot notice such a look. A worker that was stopped elsewhere speaks the door's
protocol itself, works ahead, or has left threads behind. The door of a watched worker makes no system calls (see
``Side``), so a worker in a system call is not at the door either.
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import NamedTuple, Protocol

_MAPPING = re.compile(
    r"(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) ..x. (?P<offset>[0-9a-f]+) "
    r"(?P<major>[0-9a-f]+):(?P<minor>[0-9a-f]+) (?P<inode>\d+) *(?P<name>.*)"
)
_KERNEL_CODE = ("[vdso]", "[vsyscall]")

_FULL_LOOKS = 0.25  # share of looks that read the memory map again, though nothing seems to have changed

FileId = tuple[int, int]  # (st_dev, st_ino)


class _Place(NamedTuple):
    start: int
    end: int
    offset: int
    file: FileId
    name: str


class Files(Protocol):
    """The files that a worker was handed: the door's library, and products to run."""

    door_files: frozenset[FileId]
    door_data: bytes
    products: set[FileId]


class Watch:
    """Watches whether one worker rests at the door."""

    def __init__(self, pid: int, files: Files) -> None:
        self._pid = pid
        self._files = files
        self._rng = random.SystemRandom()
        self._known: tuple[_Place, ...] = ()  # the door's mappings, as last read
        self._stack: int | None = None  # its stack pointer at the door, before any call

    def forget(self) -> None:
        """Forget the stack: the worker leaves the door, or comes to it anew."""
        self._stack = None

    def arrived(self) -> bool:
        """Whether the frozen worker waits at the door before its first call. Its stack pointer there is remembered.

        It must be seen there twice with the same stack: a worker that has just come may have stopped at the door's
        first instruction, for a page fault. Also true if the operating system does not tell.
        """
        try:
            Path(f"/proc/{self._pid}/syscall").read_text()
            stop = _stop(self._pid, str(self._pid), in_calls=False)
            if stop is None:
                return False
            self._known = tuple(place for place in self._places() if place.file in self._files.door_files)
        except OSError:
            return True
        at_door = any(place.start <= stop.counter < place.end for place in self._known)
        before, self._stack = self._stack, stop.stack if at_door else None
        return at_door and before == self._stack

    def complaint(self) -> str:
        """Why a frozen worker is not at rest; empty if it is, or if the operating system does not tell."""
        try:
            own = str(self._pid)
            tasks = os.listdir(f"/proc/{self._pid}/task")
            stops = {task: _stop(self._pid, task, in_calls=task == own) for task in tasks}
            counters = {task: None if stop is None else stop.counter for task, stop in stops.items()}
            if (stop := stops.get(own)) is not None and self._stack not in (None, stop.stack):
                return "the candidate waits for its next call at the door, but out of code of its own"
            if len(counters) == 1 and self._is_known(counters.get(own)):
                return self._changed()
            places = self._places()
        except OSError:
            return ""
        self._known = tuple(place for place in places if place.file in self._files.door_files)
        for task, counter in counters.items():
            if counter is None:
                continue
            place = next((p for p in places if p.start <= counter < p.end), None)
            if task == own and (place is None or place.file not in self._files.door_files):
                return "the candidate waits for its next call in code of its own, not at the door"
            if place is not None and (place.file in self._files.products or not place.name):
                return "the candidate's own code runs while no call is in flight"
        return self._changed()

    def _changed(self) -> str:
        """A complaint if the door's code was changed, else empty: a worker can write over its copy of the code."""
        for place in self._known:
            wanted = self._files.door_data[place.offset : place.offset + place.end - place.start]
            try:
                with open(f"/proc/{self._pid}/mem", "rb", buffering=0) as memory:
                    if os.pread(memory.fileno(), len(wanted), place.start) != wanted:
                        return "the candidate has written over the code of the door that it waits at"
            except (OSError, OverflowError):
                return ""
        return ""

    def _is_known(self, counter: int | None) -> bool:
        """Whether the memory map need not be read again: mostly so, if the task is at the door by the last reading."""
        at_door = counter is None or any(place.start <= counter < place.end for place in self._known)
        return at_door and self._rng.random() > _FULL_LOOKS

    def _places(self) -> list[_Place]:
        found = []
        for line in Path(f"/proc/{self._pid}/maps").read_text().splitlines():
            mapping = _MAPPING.match(line)
            if mapping is not None and mapping["name"] not in _KERNEL_CODE:
                device = os.makedev(int(mapping["major"], 16), int(mapping["minor"], 16))
                file = device, int(mapping["inode"])
                start, end, offset = (int(mapping[name], 16) for name in ("start", "end", "offset"))
                found.append(_Place(start, end, offset, file, mapping["name"]))
        return found


class _Stop(NamedTuple):
    """Where a task was stopped: its stack pointer and its program counter."""

    stack: int
    counter: int


def _stop(pid: int, task: str, *, in_calls: bool) -> _Stop | None:
    """Where a task was stopped; None if it runs, has ended, is ending, or is in a system call.

    ``in_calls``: for a task in a system call, where it goes on afterwards instead of None.
    """
    try:
        fields = Path(f"/proc/{pid}/task/{task}/syscall").read_text().split()
    except OSError:
        return None
    if not (len(fields) == 3 and fields[0] == "-1") and not (in_calls and len(fields) == 9):
        return None
    stack, counter = int(fields[-2], 16), int(fields[-1], 16)
    return _Stop(stack, counter) if counter else None  # a task that was killed shows zeros
