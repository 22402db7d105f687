"""Memory that processes use, as /proc shows it: for the watchdog, where no control group counts it."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from kernelwright.sandbox import memory

_COUNTED: Final = ("RssAnon:", "RssShmem:", "VmPTE:")
_STACK_BYTES: Final = 16 << 10  # in the kernel, for each thread
_BLOCK_BYTES: Final = 512  # the unit of st_blocks, whatever the file system


class _MemoryFile(NamedTuple):
    inode: int
    size_bytes: int


def memory_bytes(members: Iterable[int]) -> int:
    """Private and shared memory of processes, their page tables and kernel stacks, and memory files they hold open.

    Left out are mapped files (their libraries), and open memory files that this process made and handed to them. A
    memory file of theirs counts once however often it is open, and what is mapped of it once more: only a look at all
    mappings could tell, which takes far longer, and no worker of ours keeps its own.

    Not seen: what lies in memory files that no process has open, because they wait in a socket's queue, or are mapped
    in part and closed; and what this process may not look into (descriptors of a program that is undumpable).
    """
    total = 0
    files: dict[int, int] = {}
    for member in members:
        threads = _threads(member)
        total += _mapped_bytes(threads) + len(threads) * _STACK_BYTES
        for thread in threads:
            files.update(_memory_files(thread))
    return total + sum(size for inode, size in files.items() if not memory.made_here(inode))


def _threads(pid: int) -> list[str]:
    """Directories of a process's threads; none where it is gone."""
    directory = f"/proc/{pid}/task"
    try:
        return [f"{directory}/{thread}" for thread in os.listdir(directory)]
    except OSError:
        return []


def _mapped_bytes(threads: Iterable[str]) -> int:
    """What the threads of one process share; a first thread that has ended before the others does not show it."""
    for thread in threads:
        with contextlib.suppress(OSError), open(f"{thread}/status") as file:
            sizes = [int(line.split()[1]) << 10 for line in file if line.startswith(_COUNTED)]
            if sizes:
                return sum(sizes)
    return 0


def _memory_files(thread: str) -> Iterator[_MemoryFile]:
    """What a thread has open: each may have a table of its own (a clone without CLONE_FILES)."""
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"{thread}/fd"):
            with contextlib.suppress(OSError):
                status = os.stat(f"{thread}/fd/{fd}")
                if status.st_dev == _device():
                    yield _MemoryFile(status.st_ino, status.st_blocks * _BLOCK_BYTES)


@functools.cache
def _device() -> int:
    """The device number under which the kernel keeps all memory files, and shared memory without a name."""
    fd = os.memfd_create("device", os.MFD_CLOEXEC)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)
