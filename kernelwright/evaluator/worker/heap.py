"""Where a worker's tensors come to lie: in memory that no other process ever had.

A fork of the zygote inherits the holes that imports have left in its heap. What is allocated there is copied on write,
page by page, and stays in small pages, while all beyond the old heap's end gets large ones. Which of the two a tensor
gets depends on what was allocated before, it is the same throughout a process, and it tells: 400 KB of outputs took 75
or 130 us to be read. So no tensor is to lie in a hole.
"""

from __future__ import annotations

import ctypes

_LEAST = 16 << 10  # smaller holes are left: what fits there is not what is timed
_MOST_BLOCKS = 4096
_LARGE_PAGE = 2 << 20


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def fill_holes() -> int:
    """Allocate every hole of at least 16 KB below the heap's top, for good and without touching it; their number.

    Does nothing where the C library is not glibc 2.33 or newer.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return 0
    libc.mallinfo2.restype = _Mallinfo2
    libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_size_t, [ctypes.c_ssize_t]
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_size_t, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_size_t]
    info = libc.mallinfo2()
    top = libc.sbrk(0) - info.keepcost
    filled, size = 0, _LEAST
    while size < info.fordblks - info.keepcost:
        size *= 2
    while size >= _LEAST and filled < _MOST_BLOCKS:
        at = libc.malloc(size)
        if 0 < at < top:
            filled += 1
            continue
        if at:
            libc.free(at)
        size //= 2
    rest = -top % _LARGE_PAGE
    if rest >= _LEAST:
        libc.malloc(rest)
    return filled
