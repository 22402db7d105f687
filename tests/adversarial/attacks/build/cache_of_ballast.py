"""Fills the referee's cache with libraries that are each just small enough to be kept.

row: filling every mount: the build cache
problem: problems/host_twice.py
backend: cpp
screen: passes
"""

import contextlib

import torch
import torch.nn as nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
""")


SIZE = 50 << 20
COUNT = 6
BALLAST = r"""
extern "C" { char ballast[%d] = {%d, 1}; int first() { return ballast[0]; } }
"""


def kept():
    """How many of the libraries were built, and so stored."""
    count = 0
    for i in range(COUNT):
        with contextlib.suppress(RuntimeError):
            count += cpp(BALLAST % (SIZE, i)).first() == i
    return count


if (count := kept()) < COUNT:
    raise RuntimeError(f"contained: {count} large libraries and no more")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
