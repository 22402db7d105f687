"""Hands over a source of sixteen megabytes.

row: oversized, deep or malformed results: sources
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


large = cpp("//" + "x" * (16 << 20))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
