"""Asks for builds without an end.

row: oversized, deep or malformed results: builds
problem: problems/host_twice.py
backend: cpp
screen: passes
"""

import torch
import torch.nn as nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
""")


SOURCE = r"""
extern "C" int nothing() { return 0; }
"""
MANY = 100


def built():
    """How many builds were granted, of one source."""
    for count in range(MANY):
        try:
            cpp(SOURCE)
        except RuntimeError:
            return count
    return MANY


if (count := built()) < MANY:
    raise RuntimeError(f"contained: {count} builds and no more")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
