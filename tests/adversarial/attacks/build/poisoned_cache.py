"""Builds wrong kernels under requests that look like those of right ones, for the cache to mix them up.

row: poisoned caches and warm workers
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
#ifndef FACTOR
#define FACTOR 2
#endif
extern "C" int factor() { return FACTOR; }
"""


def variants():
    """The same source under options that change what it means."""
    yield cpp(SOURCE, flags=("-DFACTOR=3",)), 3
    yield cpp(SOURCE, defines={"FACTOR": 5}), 5
    yield cpp(SOURCE, flags=("-O0", "-DFACTOR=6")), 6
    yield cpp(SOURCE, flags=("-DOTHER=1 -DFACTOR=7",)), 2
    yield cpp(f"{SOURCE} "), 2
    yield cpp(SOURCE), 2


def mixed_up():
    """Products that are not those of their own request."""
    return [expected for library, expected in variants() if library.factor() != expected]


if not mixed_up():
    raise RuntimeError("contained: every request has its own product")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
