"""Commands that build C++ with OpenMP watched for data races, and tests of which products can be watched.

The source is compiled a second time with ``-fsanitize=thread``, only for its hooks. Neither libtsan nor libgomp is
linked. A runtime of our own (``openmp_runtime/``) runs a team's threads in turn and records each thread's accesses.
"""

from __future__ import annotations

import functools
import hashlib
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from kernelwright import inline

__all__ = [
    "RUNTIME_OBJECT",
    "asks_for_threads",
    "lacking",
    "runtime_command",
    "runtime_files",
    "runtime_version",
    "unwatched",
    "watched_command",
    "watched_flags",
]

RUNTIME_OBJECT = "openmp.o"
_FOLDER = Path(__file__).parent / "openmp_runtime"
_RUNTIME_FLAGS = ("-std=c++17", "-O2", "-w", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing")
# Little optimisation: accesses stay as in the source, and compiling takes less time.
_WATCHED_FLAGS = (
    *("-O1", "-g1", "-w", "-fsanitize=thread", "--param=tsan-distinguish-volatile=1", "-U__SANITIZE_THREAD__"),
    # Copies that the compiler writes out as instructions would have no hooks.
    *("-fno-builtin-memcpy", "-fno-builtin-memmove", "-fno-builtin-memset"),
)
# In the product these names get the prefix kw_. The runtime defines the prefixed functions and calls the real ones.
_RENAMED = (
    *("memcpy", "memmove", "memset", "malloc", "calloc", "realloc", "aligned_alloc", "posix_memalign", "free"),
    *("_Znwm", "_Znam", "_ZnwmSt11align_val_t", "_ZnamSt11align_val_t"),
    *("_ZdlPv", "_ZdaPv", "_ZdlPvm", "_ZdaPvm", "_ZdlPvSt11align_val_t", "_ZdaPvSt11align_val_t"),
    *("_ZdlPvmSt11align_val_t", "_ZdaPvmSt11align_val_t"),
    *("pthread_mutex_lock", "pthread_mutex_trylock", "pthread_mutex_unlock"),
    *("__cxa_guard_acquire", "__cxa_guard_release", "__cxa_thread_atexit"),
)
_OPENMP = re.compile(r"GOMP_\w+|omp_\w+")
_OWN_THREADS = re.compile(r"pthread_create|thrd_create|clone3?|_ZNSt6thread15_M_start_thread\w*")
_OTHER_WAITS = re.compile(
    r"pthread_(?:cond|rwlock|spin|barrier|once)\w*|sem_(?:wait|post|trywait|timedwait)|syscall|futex"
    r"|_ZNSt18condition_variable\w*|_ZNSt3_V2\w*condition\w*|__once_proxy|_ZSt11__once_call\w*"
)
_HOOK = re.compile(r"__tsan_\w+")


def asks_for_threads(symbols: Iterable[str]) -> bool:
    """Whether a product with these undefined symbols may run more threads than the one that calls it."""
    return any(name.startswith("GOMP_") or _OWN_THREADS.fullmatch(name) for name in symbols)


def unwatched(symbols: Iterable[str]) -> str:
    """Why a product with these undefined symbols cannot be watched; empty if it can."""
    names = sorted(set(symbols))
    if own := [name for name in names if _OWN_THREADS.fullmatch(name)]:
        return f"it starts threads by itself ({own[0]})"
    if waits := [name for name in names if _OTHER_WAITS.fullmatch(name)]:
        return f"it waits by {waits[0]}, which is not followed"
    return ""


def lacking(symbols: Iterable[str]) -> str:
    """Which OpenMP functions or hooks a product linked to the runtime still lacks, in words; empty if none."""
    missing = sorted(name for name in set(symbols) if _OPENMP.fullmatch(name) or _HOOK.fullmatch(name))
    return f"the runtime that looks for races lacks {', '.join(missing[:3])}" if missing else ""


@functools.lru_cache(maxsize=1)
def runtime_files() -> dict[str, bytes]:
    """The runtime's sources by name."""
    return {path.name: path.read_bytes() for path in sorted(_FOLDER.iterdir()) if path.suffix in (".h", ".cpp")}


@functools.lru_cache(maxsize=1)
def runtime_version() -> str:
    """A hash of all files that go into watched products."""
    parts = [*runtime_files().values(), Path(__file__).read_bytes()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def runtime_command(out: str) -> list[str]:
    """The command line that compiles the runtime, whose files lie in /in."""
    return ["g++", *_RUNTIME_FLAGS, "-c", "-o", out, "/in/runtime.cpp"]


def watched_flags(flags: Iterable[str]) -> tuple[str, ...]:
    """A request's flags plus those for watched accesses."""
    return (*flags, *_WATCHED_FLAGS)


def watched_command(request: inline.BuildRequest, *, fewer: bool = False, before: Iterable[str] = ()) -> list[str]:
    """The command that builds a C++ request's product watched, from /in/kernel.cpp to /job/product.so.

    The runtime's object lies in /in. ``fewer``: as in :func:`inline.compile_command`; ``before``: additional options.

    Raises:
        BuildError: an option is not allowed, or the extension's name is not an identifier.
    """
    source, out = "/in/kernel.cpp", "/job/product.so"
    compiler, *plain = inline.compile_command(request, out, source, fewer=fewer)
    libraries = [word for word in plain if word.startswith(("-l", "-L")) and word != "-lgomp"]
    skipped = {"-shared", "-o", out, source, "-lgomp", *libraries}
    options = [word for word in plain if word not in skipped]
    steps = (
        [compiler, *options, *before, *_WATCHED_FLAGS, "-c", "-o", f"{out}.o", source],
        ["objcopy", *(f"--redefine-sym={name}=kw_{name}" for name in _RENAMED), f"{out}.o"],
        [compiler, "-shared", "-o", out, f"{out}.o", f"/in/{RUNTIME_OBJECT}", *libraries],
    )
    return ["/bin/sh", "-c", " && ".join(shlex.join(step) for step in steps)]
