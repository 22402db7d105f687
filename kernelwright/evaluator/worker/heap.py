"""Makes a worker's tensors lie in memory that no other process ever had.

A fork of the zygote inherits the holes that imports have left in its heap. Memory in a hole is copied on write, page by
page, and stays in small pages. Memory beyond the old heap's end gets large pages. Earlier allocations decide which of
the two a tensor gets, for the whole life of a process. The difference is large: reading 400 KB of outputs took 75 or
130 us. So no tensor should lie in a hole.
"""

from __future__ import annotations

import ctypes

_LEAST = 16 << 10  # smaller holes are left: timed tensors do not fit into them
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

    Does nothing unless the C library is glibc 2.33 or newer.
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
