"""Sealed shared memory, which carries tensors between the referee and its workers.

The kernel enforces the seals (``memfd_create(2)``, ``fcntl(2)``). Once ``F_SEAL_FUTURE_WRITE`` is set, the mapping that
the creator already holds stays writable, but every later one, ``/proc/self/fd`` included, is read-only.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import mmap
import os
from typing import Final

F_ADD_SEALS: Final = 1033
F_SEAL_SEAL: Final = 0x01
F_SEAL_SHRINK: Final = 0x02
F_SEAL_GROW: Final = 0x04
F_SEAL_WRITE: Final = 0x08
F_SEAL_FUTURE_WRITE: Final = 0x10
_MFD_CLOEXEC: Final = 0x1
_MFD_ALLOW_SEALING: Final = 0x2
_OTHER_ATTEMPTS: Final = 7  # at an immutable file, after one whose pages the kernel held

# Inode numbers of the memory files that this process made. A guest may hold a file long after it was closed here, so
# the last _REMEMBERED closed ones are kept.
_REMEMBERED: Final = 1 << 16
_open: Final[set[int]] = set()
_closed: Final[collections.OrderedDict[int, None]] = collections.OrderedDict()


class SharedMemory:
    """One mapped memory file. Once it is sealed, only its creator can write to it.

    Attributes:
        fd: descriptor of the memory file, owned by this object.
        size: bytes.
        view: (size,) bytes; numpy and torch use it without a copy (``frombuffer``).
    """

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self._map: mmap.mmap | None = mmap.mmap(fd, size, flags=mmap.MAP_SHARED)
        self.view = memoryview(self._map)

    @classmethod
    def create(cls, size: int, name: str) -> SharedMemory:
        """Make a zero-filled memory file of ``size`` bytes, mapped writable here. ``name`` shows in /proc only."""
        fd = os.memfd_create(name, _MFD_CLOEXEC | _MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK)
            made = cls(fd, size)
        except BaseException:
            os.close(fd)
            raise
        _open.add(os.fstat(fd).st_ino)
        return made

    def seal(self) -> None:
        """Let only the mapping held here write, and make size and seals final. Call this before sending ``fd``."""
        fcntl.fcntl(self.fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)

    def close(self) -> None:
        """Close the descriptor and unmap. If arrays still use ``view``, the last of them unmaps it when freed."""
        if self.fd < 0:
            return
        if (inode := os.fstat(self.fd).st_ino) in _open:
            _remember(inode)
            _open.discard(inode)
        os.close(self.fd)
        self.fd = -1
        mapping, self._map = self._map, None
        with contextlib.suppress(BufferError):
            self.view.release()
            if mapping is not None:
                mapping.close()
        self.view = memoryview(b"")

    def __enter__(self) -> SharedMemory:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            self.close()


def product_memfd(data: bytes, name: str = "product") -> int:
    """Make an immutable memory file that holds ``data``. The caller closes the descriptor.

    The kernel refuses the seal (EBUSY) while it holds a page of the file for its own ends, as when it moves memory on a
    busy machine. It then waits for 0.1 s by itself. Another file has other pages.

    Raises:
        OSError: no memory file could be made and sealed.
    """
    for _ in range(_OTHER_ATTEMPTS):
        try:
            return _sealed(data, name)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
    return _sealed(data, name)


def _sealed(data: bytes, name: str) -> int:
    fd = os.memfd_create(name, _MFD_CLOEXEC | _MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    _remember(os.fstat(fd).st_ino)
    return fd


def made_here(inode: int) -> bool:
    """Whether this process made the memory file with this inode number. The kernel never reuses inode numbers."""
    return inode in _open or inode in _closed


def _remember(inode: int) -> None:
    _closed[inode] = None
    if len(_closed) > _REMEMBERED:
        _closed.popitem(last=False)
