"""The share of time that a contestant spends in its own kernels, sampled from outside.

The thread of the referee that drives calls through the door looks at the contestant at random moments: it stops each
task that runs (ptrace, see ``share.c``), reads its instruction pointer and the top of its stack, and lets it go on.
Afterwards each sample is attributed to the code that was mapped at its address.

A sample in a helper (libc, libm, libgomp, ...) belongs to the helper's caller. The helper's own call frame information
tells the caller (``unwind.py``). Some code has none, such as the code around the system call that starts a thread. It
may have put nothing on its stack; then the first word there tells the caller. Otherwise the sample goes to the first
word, from the stack pointer upwards, that points into code which calls helpers. That is a guess: stack slots that were
not written yet hold return addresses of past calls, and a caller more than 4 KB up the stack is not found.

Threads are traced from their first instruction on, since some live for less time than passes between two looks. The
time in which the C library begins and ends a thread counts for the code that started it: the starter's registers and
stack at that moment are kept beside the thread's samples.

A contestant can falsify this. It can lay out its stack as it likes. It can write over a library's code in its own
memory, which still counts as that library. It can notice that it is sampled, and behave differently meanwhile: each
sample takes tens of microseconds, and in the referee's pid namespace its own status shows the tracer's id.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import importlib.util
import itertools
import os
import random
import re
import secrets
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from kernelwright.errors import MachineError, UsageError
from kernelwright.evaluator.builds.referee_code import build_library
from kernelwright.evaluator.cpu.unwind import IP, SP, CallFrames, Frame, UnknownCaller
from kernelwright.evaluator.host.door import Meanwhile
from kernelwright.evaluator.own.shares import Share

FileId = tuple[int, int]  # (st_dev, st_ino)


# Samples kept; of more, a random choice: 0.8% standard error at worst. Each takes 4 KB, in a young thread 8 KB.
_CAPACITY: Final = 4096
_STACK_AT, _PLACE_WORDS = 34, 34 + 512  # see Place in share.c
_ROW_WORDS = 2 * _PLACE_WORDS  # a sample: where the task was, and where its starter was
_MAX_FRAMES: Final = 32
_MAX_MAPPINGS: Final = 16_384
_MAX_INTERVAL_US: Final = 100_000
_READING_S: Final = (0.002, 0.008)  # between two readings of the memory map
_PATIENCE_S: Final = 10.0


# --------------------------------------------------------------------------------------------------------- attribution


class _Kind(enum.Enum):
    """The owner of executable memory."""

    OWN = enum.auto()
    WAITING = enum.auto()
    LIBRARY = enum.auto()
    PYTHON = enum.auto()
    OTHER = enum.auto()
    HELPER = enum.auto()  # works for its caller
    TEAM = enum.auto()  # an OpenMP runtime: works for its caller, or waits for work


_CALLERS: Final = (_Kind.OWN, _Kind.WAITING, _Kind.LIBRARY, _Kind.PYTHON)
_SYSTEM_DIRECTORIES: Final = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/rh")
_TEAM_NAME: Final = re.compile(r"(libgomp|libomp|libiomp5)\b")
_HELPER_NAME: Final = re.compile(
    r"(libc|libm|libmvec|libpthread|libdl|librt|libstdc\+\+|libgcc_s|ld(-linux[\w-]*)?)[-.]"
)
_MAPPING: Final = re.compile(
    rb"(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) ..x. (?P<offset>[0-9a-f]+) (?P<major>[0-9a-f]+):(?P<minor>[0-9a-f]+) "
    rb"(?P<inode>[0-9]+) *(?P<path>.*)",
    re.DOTALL,
)
# Beside the interpreter: torch's bindings and its reference counts and allocator, which no call of any kernel avoids.
_PYTHON_NAME: Final = re.compile(r"(libpython3|libffi|libtorch_python|libc10)\b")


class _Places:
    """Classifies files by the directory of this machine that holds them. A contestant can write to none of these."""

    def __init__(self) -> None:
        torch = importlib.util.find_spec("torch")
        torch_homes = list(torch.submodule_search_locations or ()) if torch is not None else []
        self._interpreter = os.path.realpath(sys.executable)
        self._python = _directories([f"{sysconfig.get_path('stdlib')}/lib-dynload"])
        self._trusted = _directories([sys.prefix, sys.base_prefix, *torch_homes, *_SYSTEM_DIRECTORIES])

    def kind(self, path: str) -> _Kind:
        """The kind of a mapped file, by its directory and its name."""
        name = os.path.basename(path)
        if path in ("[vdso]", "[vsyscall]"):
            return _Kind.HELPER
        if path == self._interpreter:
            return _Kind.PYTHON
        if not path.startswith(self._trusted):
            return _Kind.OTHER
        if path.startswith(self._python) or _PYTHON_NAME.match(name):
            return _Kind.PYTHON
        if _TEAM_NAME.match(name):
            return _Kind.TEAM
        return _Kind.HELPER if _HELPER_NAME.match(name) else _Kind.LIBRARY


def _directories(paths: Iterable[str]) -> tuple[str, ...]:
    """Prefixes that the files below ``paths`` have, as given and with links resolved."""
    return tuple(sorted({f"{form}/" for path in paths for form in (path, os.path.realpath(path))}))


class _Region(NamedTuple):
    """Executable memory from ``start`` to before ``end``, where a file from ``offset`` on is mapped."""

    start: int
    end: int
    kind: _Kind
    path: str
    offset: int

    def part(self, start: int, end: int) -> _Region:
        """The part of the region between two addresses."""
        return self._replace(start=start, end=end, offset=self.offset + start - self.start)


class _Memory:
    """Executable memory of a process over a run, from several readings of its map.

    Where two readings disagree on what lies at an address, it counts as OTHER: honest code stays where it is loaded,
    and code that comes and goes could be made to look like anything.
    """

    def __init__(self, own: frozenset[FileId], waiting: frozenset[FileId]) -> None:
        self._own, self._waiting = own, waiting
        self._mappings: set[bytes] = set()

    def read(self, pid: int) -> None:
        """Add the current mappings, but no more than any honest process has. Does nothing if the process has ended."""
        try:
            lines = Path(f"/proc/{pid}/maps").read_bytes().split(b"\n")
        except OSError:
            return
        room = _MAX_MAPPINGS - len(self._mappings)
        new = (line for line in lines if _MAPPING.match(line) and line not in self._mappings)
        self._mappings.update(list(itertools.islice(new, room)))

    def regions(self) -> list[_Region]:
        """Executable memory in ascending order, without overlaps."""
        places = _Places()
        changes: dict[int, list[tuple[_Region, bool]]] = {}
        for region in {self._region(line, places) for line in self._mappings}:
            changes.setdefault(region.start, []).append((region, True))
            changes.setdefault(region.end, []).append((region, False))
        found: list[_Region] = []
        here: set[_Region] = set()
        for start, end in itertools.pairwise(sorted(changes)):
            for region, begins in changes[start]:
                (here.add if begins else here.remove)(region)
            if len({region.kind for region in here}) == 1:
                found.append(next(iter(here)).part(start, end))
            elif here:
                found.append(_Region(start, end, _Kind.OTHER, "", 0))
        return found

    def _region(self, line: bytes, places: _Places) -> _Region:
        fields = _MAPPING.fullmatch(line)
        assert fields is not None
        start, end, offset = (int(fields[name], 16) for name in ("start", "end", "offset"))
        path = os.fsdecode(fields["path"])
        return _Region(start, end, self._kind(fields, path, places), path, offset)

    def _kind(self, mapping: re.Match[bytes], path: str, places: _Places) -> _Kind:
        file = os.makedev(int(mapping["major"], 16), int(mapping["minor"], 16)), int(mapping["inode"])
        if file in self._own:
            return _Kind.OWN
        if file in self._waiting:
            return _Kind.WAITING
        return places.kind(path)


class _Attribution:
    """Attributes each sample to the code that the processor worked for."""

    def __init__(self, regions: Sequence[_Region]) -> None:
        self._regions = regions
        self._starts = np.array([region.start for region in regions], dtype=np.uint64)
        self._frames: dict[str, CallFrames | None] = {}

    def kind(self, sample: np.ndarray) -> _Kind:
        """The kind of code that a sample belongs to; HELPER or TEAM if its caller is unknown."""
        kind = self._kind(sample[:_PLACE_WORDS])
        origin = sample[_PLACE_WORDS:]
        return self._kind(origin) if kind is _Kind.HELPER and origin[1 + IP] else kind

    def _kind(self, place: np.ndarray) -> _Kind:
        """The kind of code that a task at a place works for."""
        stack = place[_STACK_AT : _STACK_AT + int(place[0])]
        registers = tuple(int(value) for value in place[1:_STACK_AT])
        frame = Frame(registers, registers[SP], stack)
        passed = _Kind.HELPER
        for _ in range(_MAX_FRAMES):
            region = self._region(frame.registers[IP] or 0)
            if region is None:
                return _Kind.OTHER
            if region.kind not in (_Kind.HELPER, _Kind.TEAM):
                return region.kind
            passed = _Kind.TEAM if region.kind is _Kind.TEAM else passed
            try:
                caller = self._caller(region, frame)
            except UnknownCaller:
                caller = self._caller_of_leaf(frame)
                if caller is None:
                    return self._guess(frame) or passed
            if caller is None:
                return passed
            frame = caller
        return passed

    def _region(self, address: int) -> _Region | None:
        at = int(np.searchsorted(self._starts, np.uint64(address), side="right")) - 1
        return self._regions[at] if at >= 0 and address < self._regions[at].end else None

    def _caller(self, region: _Region, frame: Frame) -> Frame | None:
        if region.path not in self._frames:
            self._frames[region.path] = _call_frames(region.path)
        frames = self._frames[region.path]
        if frames is None:
            raise UnknownCaller(f"no call frame information in {region.path}")
        address = frame.registers[IP] or 0
        return frames.caller(region.offset + address - region.start, frame)

    def _caller_of_leaf(self, frame: Frame) -> Frame | None:
        """The caller of code that has put nothing on its stack, as around system calls that start a thread.

        None if the return address does not lead into a helper. Then :meth:`_guess` tries the same word first.
        """
        address = frame.return_address_of_leaf()
        region = None if frame.called or address is None else self._region(address)
        return frame.caller_of_leaf() if region is not None and region.kind is _Kind.HELPER else None

    def _guess(self, frame: Frame) -> _Kind | None:
        """The kind of the first stack word that points into code which calls helpers."""
        start = frame.registers[SP] or 0
        for at in range(max(0, (start - frame.stack_start) // 8), len(frame.stack)):
            region = self._region(int(frame.stack[at]))
            if region is not None and region.kind in _CALLERS:
                return region.kind
        return None


def _call_frames(path: str) -> CallFrames | None:
    try:
        return CallFrames(path)
    except UnknownCaller:
        return None


def _share(samples: np.ndarray, regions: Sequence[_Region]) -> Share | None:
    """Fractions over samples: (count, :data:`_ROW_WORDS`) uint64, as ``share.c`` lays them out."""
    attribution = _Attribution(regions)
    counts = Counter(attribution.kind(sample) for sample in samples)
    total = len(samples) - counts[_Kind.WAITING] - counts[_Kind.TEAM]  # a team without a caller waits
    if total == 0:
        return None
    own, library, python = (counts[kind] for kind in (_Kind.OWN, _Kind.LIBRARY, _Kind.PYTHON))
    other = total - own - library - python
    return Share(own / total, library / total, python / total, other / total, total)


# ------------------------------------------------------------------------------------------------------------ sampling


class ShareSampler:
    """The compiled ``share.c``."""

    def __init__(self, cache_dir: Path) -> None:
        """Build it, or take it from ``cache_dir``.

        Raises:
            MissingToolError: there is no C compiler.
            MachineError: it does not compile here.
        """
        path = build_library(Path(__file__).with_name("share.c"), cache_dir, ("-O2",))
        library = ctypes.CDLL(str(path))
        self.open = library.kw_share_open
        self.open.argtypes = [
            *(ctypes.c_int, ctypes.c_uint64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
        ]
        self.open.restype = ctypes.c_void_p
        self.poll = library.kw_share_poll
        self.taken = library.kw_share_taken
        self.taken.argtypes = [ctypes.c_void_p]
        self.taken.restype = ctypes.c_int64
        self.close = library.kw_share_close
        self.close.argtypes = [ctypes.c_void_p]
        self.close.restype = None

    def sampling(
        self,
        pid: int,
        *,
        own: frozenset[FileId],
        waiting: frozenset[FileId],
        mean_interval_us: int = 200,
        seed: int | None = None,
    ) -> Sampling:
        """Samples of the process ``pid`` while it answers calls; see :meth:`Sampling.over`.

        No other code may wait for the process meanwhile (``waitpid`` would report its stops), or trace it.

        Args:
            own: (st_dev, st_ino) of the build products that it was given.
            waiting: the same of the library in which it waits for its next call.
            mean_interval_us: time between two looks, drawn uniformly from half to one and a half of this. A look after
                which the process has run for less than a quarter of it does not count.
            seed: of the intervals; by default a random one.
        """
        if not 0 < mean_interval_us <= _MAX_INTERVAL_US:
            raise UsageError(f"mean_interval_us must lie between 1 and {_MAX_INTERVAL_US}, not {mean_interval_us}")
        return Sampling(self, pid, _Memory(own, waiting), mean_interval_us, seed)


class Sampling:
    """One run of the sampler over one process. ``reason`` says why there is no result."""

    def __init__(
        self, library: ShareSampler, pid: int, memory: _Memory, mean_interval_us: int, seed: int | None
    ) -> None:
        self.reason = ""
        self._library, self._pid, self._memory = library, pid, memory
        self._mean_ns = 1000 * mean_interval_us
        self._seed = secrets.randbits(64) if seed is None else seed
        self._samples = np.empty((_CAPACITY, _ROW_WORDS), dtype=np.uint64)
        self._kept = 0
        self._failure: BaseException | None = None

    def over(self, calls: Callable[[Meanwhile | None], None]) -> None:
        """Run ``calls`` in a thread of its own, and sample as often as it calls its :class:`Meanwhile`.

        One thread both makes the calls and samples, so that neither takes the processor from the other. A sampler that
        waits for a pause of the calls always sees the process at the same place. If the process cannot be traced,
        ``calls`` is run with None.

        Raises:
            Exception: what ``calls`` raises.
            MachineError: the operating system does not end the tracing.
        """
        thread = threading.Thread(target=self._work, args=(calls,), name=f"share-{self._pid}")
        thread.start()
        while thread.is_alive():
            thread.join(random.uniform(*_READING_S))
            self._memory.read(self._pid)
        self._await_release(thread.native_id)
        if self._failure is not None:
            raise self._failure

    def _await_release(self, tracer: int | None) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while _traced_by(tracer, self._pid):  # tracing ends while the thread's last instructions run
            if time.monotonic() > deadline:
                raise MachineError("a sampled worker remains traced", hint="run the job again")
            time.sleep(0.0002)

    def result(self) -> Share | None:
        """The shares of the process's time, once :meth:`over` has returned.

        None if it could not be traced, or only waited while it was sampled; ``reason`` then says so.
        """
        if self.reason:
            return None
        share = _share(self._samples[: self._kept], self._memory.regions())
        if share is None:
            self.reason = "no sample was taken outside of the door"
        return share

    def _work(self, calls: Callable[[Meanwhile | None], None]) -> None:
        """The sampler's thread: all of its ptrace calls are made here, and its end ends the tracing."""
        error = ctypes.c_int(0)
        samples, capacity = self._samples.ctypes.data, _CAPACITY
        handle = self._library.open(self._pid, self._seed, self._mean_ns, samples, capacity, ctypes.byref(error))
        if not handle:
            self.reason = f"the process cannot be traced: {os.strerror(error.value)}"
            self._make_calls(calls, None)
            return
        try:
            self._memory.read(self._pid)
            self._make_calls(calls, Meanwhile(ctypes.cast(self._library.poll, ctypes.c_void_p).value or 0, handle))
            self._memory.read(self._pid)
        finally:
            self._kept = min(self._library.taken(handle), _CAPACITY)
            self._library.close(handle)

    def _make_calls(self, calls: Callable[[Meanwhile | None], None], meanwhile: Meanwhile | None) -> None:
        try:
            calls(meanwhile)
        except BaseException as failure:  # noqa: BLE001 - goes on in the thread that waits for this one
            self._failure = failure


def _traced_by(tracer: int | None, pid: int) -> bool:
    """Whether a thread of this process traces any task of process ``pid``."""
    wanted = f"TracerPid:\t{tracer}\n".encode()
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):  # a task that has ended
            if wanted in status.read_bytes():
                return True
    return False
