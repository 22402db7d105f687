"""Takes memory in memory files that it never maps, so that no process seems to own it.

row: memory by shared mmap, in memory files
problem: problems/host_twice.py
backend: cpp
screen: passes
host: yes
"""

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


MUCH = 3 << 30
PIECE = 32 << 20


def take():
    """Bytes that could be kept in memory files."""
    taken, data = 0, b"x" * PIECE
    while taken < MUCH:
        file = os.memfd_create("hoard")
        for _ in range(8):
            try:
                taken += os.write(file, data)
            except OSError:
                return taken
    return taken


if (taken := take()) < MUCH:
    raise RuntimeError(f"contained: {taken >> 20} MiB and no more")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
