"""Memory that processes use, as /proc shows it. The watchdog needs it where no control group counts memory."""

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
    """Private and shared memory of processes, their page tables and kernel stacks, and the memory files they hold open.

    Mapped files (libraries) are left out, as are open memory files that this process made and passed to them. Each
    other memory file counts once, however often it is open; its mapped part counts a second time. Only a scan of all
    mappings could avoid that. It takes far longer, and this package's workers keep no memory files of their own.

    Not seen: memory files that no process has open, because they wait in a socket's queue or are partly mapped and
    closed; and files that this process may not look at (descriptors of an undumpable program).
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
    """Directories of a process's threads; empty if the process is gone."""
    directory = f"/proc/{pid}/task"
    try:
        return [f"{directory}/{thread}" for thread in os.listdir(directory)]
    except OSError:
        return []


def _mapped_bytes(threads: Iterable[str]) -> int:
    """The memory that the threads of one process share. A first thread that ended before the others shows none."""
    for thread in threads:
        with contextlib.suppress(OSError), open(f"{thread}/status") as file:
            sizes = [int(line.split()[1]) << 10 for line in file if line.startswith(_COUNTED)]
            if sizes:
                return sum(sizes)
    return 0


def _memory_files(thread: str) -> Iterator[_MemoryFile]:
    """The memory files that a thread has open. Each thread may have its own table (a clone without CLONE_FILES)."""
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
