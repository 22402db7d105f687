"""Builds a library of a hundred megabytes.

row: oversized, deep or malformed results: products
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


ballast = cpp(r"""
extern "C" { char ballast[100 << 20] = {1}; int first() { return ballast[0]; } }
""")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
