"""The share of time that a contestant spends in its own kernels, sampled from outside.

While one thread of the referee drives calls through the door, another looks at the contestant at random moments: it
stops each task that runs (ptrace, see ``_share.c``), reads its instruction pointer and the top of its stack, and lets
it go on. Afterwards the samples are attributed to what was mapped there.

A sample in a helper (libc, libm, libgomp, ...) is attributed to the first word, from the stack pointer upwards, that
points into executable memory of anything else. That is the caller in nearly all cases, but it is a guess: a stale
address in an unused stack slot can be taken for the caller, a caller more than 4 KB up the stack is not found, and a
contestant may lay out its stack as it likes.

What else a contestant can do: notice that it is sampled (each sample takes tens of microseconds; where it shares the
referee's pid namespace it also reads the tracer's id in its own status), and behave differently meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import hashlib
import importlib.util
import os
import re
import secrets
import subprocess
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, NamedTuple

import numpy as np

from kernelwright.errors import MachineError, MissingToolError, UsageError

FileId = tuple[int, int]  # (st_dev, st_ino)

OWN_AT_LEAST: Final = 0.05  # of all samples; with less, own kernels are decoration
FOREIGN_AT_MOST: Final = 0.10  # of own and foreign samples together; allocation and binding code stay below it

_CAPACITY: Final = 4096  # samples kept, about 4 KB each; of more, a random choice: 0.8% standard error at worst
_WORDS: Final = 513  # see _share.c
_FIRST_TICKS: Final = 16  # between two readings of the memory map; doubled each time
_MAX_TICKS: Final = 1024
_MAX_INTERVAL_US: Final = 100_000
_PATIENCE_S: Final = 10.0


class Share(NamedTuple):
    """Fractions of a contestant's samples, those left out in which it waited for its next call.

    Attributes:
        own: in build products that the referee handed out.
        library: in torch and everything else that is installed beside it, numpy and other BLAS included.
        python: in the interpreter, its standard library's modules and libffi.
        other: anywhere else: generated code (oneDNN's, for one), files of the contestant's own making.
        samples: how many samples these are fractions of.
    """

    own: float
    library: float
    python: float
    other: float
    samples: int


def label(share: Share) -> Literal["kernel", "hybrid", "library"]:
    """What a candidate is, by where it spends its time.

    ``library``: own kernels take less than :data:`OWN_AT_LEAST` of the whole. ``kernel``: foreign code (libraries, and
    whatever belongs to nobody, since libraries generate code at run time and a contestant may copy theirs) takes at
    most :data:`FOREIGN_AT_MOST` of own and foreign together. ``hybrid``: the rest.
    """
    foreign = share.library + share.other
    if share.own < OWN_AT_LEAST:
        return "library"
    return "kernel" if foreign <= FOREIGN_AT_MOST * (share.own + foreign) else "hybrid"


# --------------------------------------------------------------------------------------------------------- attribution


class _Kind(enum.IntEnum):
    """What executable memory belongs to; DATA is all memory that is not executable."""

    DATA = 0
    OWN = 1
    WAITING = 2
    LIBRARY = 3
    PYTHON = 4
    OTHER = 5
    HELPER = 6  # works for whoever calls it
    TEAM = 7  # libgomp: works for its caller, or waits for work


_ATTRIBUTABLE: Final = (_Kind.OWN, _Kind.WAITING, _Kind.LIBRARY, _Kind.PYTHON)
_SYSTEM_DIRECTORIES: Final = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/rh")
_TEAM_NAME: Final = re.compile(r"libgomp\b")
_HELPER_NAME: Final = re.compile(
    r"(libc|libm|libmvec|libpthread|libdl|librt|libstdc\+\+|libgcc_s|ld(-linux[\w-]*)?)[-.]"
)
_MAPPING: Final = re.compile(
    rb"(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) ..x. [0-9a-f]+ (?P<major>[0-9a-f]+):(?P<minor>[0-9a-f]+) "
    rb"(?P<inode>[0-9]+) *(?P<path>.*)",
    re.DOTALL,
)
_PYTHON_NAME: Final = re.compile(r"(libpython3|libffi)[\w.-]*")


class _Places:
    """Which directories of this machine hold what. A contestant can write to none of them."""

    def __init__(self) -> None:
        torch = importlib.util.find_spec("torch")
        torch_homes = list(torch.submodule_search_locations or ()) if torch is not None else []
        self._interpreter = os.path.realpath(sys.executable)
        self._python = _directories([f"{sysconfig.get_path('stdlib')}/lib-dynload"])
        self._trusted = _directories([sys.prefix, sys.base_prefix, *torch_homes, *_SYSTEM_DIRECTORIES])

    def kind(self, path: str) -> _Kind:
        """What a mapped file is, by where it lies and by its name."""
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


class _Memory:
    """Executable memory of a process over a run, from several readings of its map.

    Where two readings disagree on what lies at an address, it counts as OTHER: honest code stays where it is loaded,
    and code that comes and goes could be made to look like anything.
    """

    def __init__(self, own: frozenset[FileId], waiting: frozenset[FileId]) -> None:
        self._own, self._waiting = own, waiting
        self._mappings: set[bytes] = set()

    def read(self, pid: int) -> None:
        """Add what is mapped now; nothing where the process has ended."""
        try:
            lines = Path(f"/proc/{pid}/maps").read_bytes().split(b"\n")
        except OSError:
            return
        self._mappings.update(line for line in lines if _MAPPING.match(line))

    def kinds_at(self, addresses: np.ndarray) -> np.ndarray:
        """The kind of memory at each address: uint64 in, uint8 of the same shape out."""
        edges, kinds = self._ranges()
        return kinds[np.searchsorted(edges, addresses, side="right")]

    def _ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """Addresses at which the kind changes, ascending, and the kinds before, between and after them."""
        places = _Places()
        changes: dict[int, list[tuple[_Kind, int]]] = {}
        for line in self._mappings:
            fields = _MAPPING.fullmatch(line)
            assert fields is not None
            kind = self._kind(fields, places)
            changes.setdefault(int(fields["start"], 16), []).append((kind, 1))
            changes.setdefault(int(fields["end"], 16), []).append((kind, -1))
        edges, kinds, here = sorted(changes), [_Kind.DATA], Counter[_Kind]()
        for edge in edges:
            for kind, change in changes[edge]:
                here[kind] += change
            present = [kind for kind, count in here.items() if count]
            kinds.append(_Kind.DATA if not present else present[0] if len(present) == 1 else _Kind.OTHER)
        return np.array(edges, dtype=np.uint64), np.array(kinds, dtype=np.uint8)

    def _kind(self, mapping: re.Match[bytes], places: _Places) -> _Kind:
        file = os.makedev(int(mapping["major"], 16), int(mapping["minor"], 16)), int(mapping["inode"])
        if file in self._own:
            return _Kind.OWN
        if file in self._waiting:
            return _Kind.WAITING
        return places.kind(os.fsdecode(mapping["path"]))


def _attribute(samples: np.ndarray, memory: _Memory) -> Share | None:
    """Fractions over samples: (count, 2 + words) uint64, each row an instruction pointer, a length, that many words."""
    kinds = memory.kinds_at(samples[:, 0])
    rows = np.flatnonzero((kinds == _Kind.HELPER) | (kinds == _Kind.TEAM))
    words = np.where(np.arange(_WORDS) < samples[rows, 1, None], samples[rows, 2:], 0)
    callers = memory.kinds_at(words)
    known = np.isin(callers, _ATTRIBUTABLE)
    found = known.any(axis=1)
    kinds[rows[found]] = callers[found, known.argmax(axis=1)[found]]
    counts = np.bincount(kinds, minlength=len(_Kind))
    total = len(kinds) - int(counts[_Kind.WAITING] + counts[_Kind.TEAM])  # a team that works for nobody waits
    if total == 0:
        return None
    own, library, python = (int(counts[kind]) for kind in (_Kind.OWN, _Kind.LIBRARY, _Kind.PYTHON))
    other = total - own - library - python
    return Share(own / total, library / total, python / total, other / total, total)


# ------------------------------------------------------------------------------------------------------------ sampling


class ShareSampler:
    """The compiled ``_share.c``."""

    def __init__(self, cache_dir: Path) -> None:
        """Build it, or take it from ``cache_dir``.

        Raises:
            MissingToolError: there is no C compiler.
            MachineError: it does not compile here.
        """
        source = (Path(__file__).parent / "_share.c").read_text()
        path = cache_dir / "share" / f"{hashlib.sha256(source.encode()).hexdigest()[:24]}.so"
        if not path.exists():
            _compile(source, path)
        library = ctypes.CDLL(str(path))
        self.open = library.kw_share_open
        self.open.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_int64, ctypes.c_void_p]
        self.open.restype = ctypes.c_void_p
        self.run = library.kw_share_run
        self.run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64]
        self.run.restype = ctypes.c_int
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
        """A context in which the process ``pid`` is sampled; see :meth:`Sampling.result`.

        Nobody else may wait for the process meanwhile (``waitpid`` would be told of its stops), nor trace it.

        Args:
            own: (st_dev, st_ino) of the build products that it was given.
            waiting: the same of the library in which it waits for its next call.
            mean_interval_us: between two looks; each interval is drawn uniformly from half to one and a half of it.
            seed: of the intervals; by default a random one.
        """
        if not 0 < mean_interval_us <= _MAX_INTERVAL_US:
            raise UsageError(f"mean_interval_us must lie between 1 and {_MAX_INTERVAL_US}, not {mean_interval_us}")
        return Sampling(self, pid, _Memory(own, waiting), mean_interval_us, seed)


class Sampling:
    """One run of the sampler over one process, as a context. ``reason`` says why there is no result."""

    def __init__(
        self, library: ShareSampler, pid: int, memory: _Memory, mean_interval_us: int, seed: int | None
    ) -> None:
        self.reason = ""
        self._library, self._pid, self._memory = library, pid, memory
        self._mean_ns = 1000 * mean_interval_us
        self._seed = secrets.randbits(64) if seed is None else seed
        self._samples = np.empty((_CAPACITY, 2 + _WORDS), dtype=np.uint64)
        self._kept = 0
        self._stop = ctypes.c_int(0)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"share-{pid}", daemon=True)

    def __enter__(self) -> Sampling:
        self._thread.start()
        self._ready.wait(_PATIENCE_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; returns when the process runs untraced.

        Raises:
            MachineError: the sampler's thread does not end, or the kernel does not let the process go.
        """
        self._stop.value = 1
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():
            raise MachineError("the sampler of own kernels does not end", hint="run the job again")
        deadline = time.monotonic() + _PATIENCE_S
        while _traced_by(
            self._thread.native_id, self._pid
        ):  # the kernel lets go while the thread's last instructions run
            if time.monotonic() > deadline:
                raise MachineError("a sampled worker remains traced", hint="run the job again")
            time.sleep(0.0002)

    def result(self) -> Share | None:
        """Where the process spent its time, after the context has ended.

        None where it could not be traced, or did nothing but wait while it was sampled; ``reason`` then says so.
        """
        if self.reason:
            return None
        share = _attribute(self._samples[: self._kept], self._memory)
        if share is None:
            self.reason = "no sample was taken outside of the door"
        return share

    def _work(self) -> None:
        """The sampler's thread: all of its ptrace calls are made here, and its end ends the tracing."""
        error = ctypes.c_int(0)
        try:
            handle = self._library.open(self._pid, self._seed, self._mean_ns, ctypes.byref(error))
            if not handle:
                self.reason = f"the process cannot be traced: {os.strerror(error.value)}"
                return
            self._memory.read(self._pid)
        finally:
            self._ready.set()
        try:
            self._sample(handle)
        finally:
            self._library.close(handle)

    def _sample(self, handle: int) -> None:
        ticks, ended = _FIRST_TICKS, False
        while not ended and not self._stop.value:
            stop, where = ctypes.byref(self._stop), self._samples.ctypes.data
            ended = self._library.run(handle, stop, ticks, where, _CAPACITY)
            self._memory.read(self._pid)
            ticks = min(2 * ticks, _MAX_TICKS)
        self._kept = min(self._library.taken(handle), _CAPACITY)


def _compile(source: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    command = ["gcc", "-O2", "-shared", "-fPIC", "-x", "c", "-o", str(temporary), "-"]
    try:
        subprocess.run(command, input=source.encode(), check=True, capture_output=True)
    except FileNotFoundError:
        raise MissingToolError("gcc is missing", hint="install a C and C++ compiler: apt install g++") from None
    except subprocess.CalledProcessError as error:
        raise MachineError(f"the sampler could not be built: {error.stderr.decode()[-500:]}") from None
    temporary.replace(path)


def _traced_by(tracer: int | None, pid: int) -> bool:
    """Whether a thread of this process traces any task of process ``pid``."""
    wanted = f"TracerPid:\t{tracer}\n".encode()
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):  # a task that has ended
            if wanted in status.read_bytes():
                return True
    return False
