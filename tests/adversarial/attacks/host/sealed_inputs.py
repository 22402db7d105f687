"""Writes to the memory that its inputs are shown in, which the reference reads as well.

row: in-place change of inputs: through sealed memory
problem: problems/host_twice.py
backend: cpp
screen: refuses
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
libc.mremap.restype = ctypes.c_void_p
PAGE = 4096
READ_WRITE = 3
MADV_REMOVE, MADV_DONTNEED_LOCKED = 9, 24


def by_memory_file(address):
    """/proc/self/mem writes where the mapping itself may not."""
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(address)
        memory.write(b"x")


def by_map_file(address):
    """The mapping's file, opened again."""
    with open("/proc/self/maps") as maps:
        span = next(
            line.split()[0]
            for line in maps
            if int(line.split("-")[0], 16) <= address < int(line.split("-")[1].split()[0], 16)
        )
    os.close(os.open(f"/proc/self/map_files/{span}", os.O_RDWR))


def changes(address):
    """Ways in which the page at an address could be changed."""
    page = ctypes.c_void_p(address & -PAGE)
    found = []
    if libc.mprotect(page, ctypes.c_size_t(PAGE), READ_WRITE) == 0:
        found.append("mprotect")
    if libc.madvise(page, ctypes.c_size_t(PAGE), MADV_REMOVE) == 0:
        found.append("madvise")
    copy = libc.mremap(page, ctypes.c_size_t(0), ctypes.c_size_t(PAGE), 1)
    if (
        copy != ctypes.c_void_p(-1).value
        and libc.mprotect(ctypes.c_void_p(copy), ctypes.c_size_t(PAGE), READ_WRITE) == 0
    ):
        found.append("mremap")
    for way in (by_memory_file, by_map_file):
        try:
            way(address)
        except OSError:
            continue
        found.append(way.__name__)
    return found


def shared_pages():
    """One address in each shared mapping that is not writable: inputs, weights, the referee's page."""
    with open("/proc/self/maps") as maps:
        return [int(line.split("-")[0], 16) for line in maps if line.split()[1] == "r--s"]


class ModelNew(nn.Module):
    def forward(self, x):
        found = {hex(address): ways for address in (x.data_ptr(), *shared_pages()) if (ways := changes(address))}
        if not found:
            raise RuntimeError("contained: inputs cannot be written")
        print(found, flush=True)
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
