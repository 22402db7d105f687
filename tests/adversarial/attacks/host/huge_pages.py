"""Takes huge pages out of the host's own pool.

row: memory by shared mmap, in huge pages
problem: problems/host_twice.py
backend: cpp
screen: passes
host: yes
"""

import ctypes
import os

import torch
import torch.nn as nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
""")


libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
SIZE = 2 << 20
READ_WRITE, PRIVATE_ANONYMOUS_HUGE, SHARED = 3, 0x40022, 1
MFD_HUGETLB = 4


def takes():
    """Ways in which a page of the pool could be had."""
    found = []
    if libc.mmap(None, ctypes.c_size_t(SIZE), READ_WRITE, PRIVATE_ANONYMOUS_HUGE, -1, 0) != ctypes.c_void_p(-1).value:
        found.append("mmap")
    try:
        file = os.memfd_create("huge", MFD_HUGETLB)
        os.ftruncate(file, SIZE)
    except OSError:
        return found
    if libc.mmap(None, ctypes.c_size_t(SIZE), READ_WRITE, SHARED, file, 0) != ctypes.c_void_p(-1).value:
        found.append("memory file")
    return found


if not (found := takes()):
    raise RuntimeError("contained: no huge page to be had")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
