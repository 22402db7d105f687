"""Writes a boolean result as bytes and returns a view of them as booleans.

row: wrong dtype
problem: problems/honest_mask.py
backend: cpp
screen: passes
like: partial/integers_called_floats
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void larger(const float* x, const float* y, uint8_t* out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = x[i] > y[i];
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty(x.shape, dtype=torch.uint8)
        lib.larger(x, y, out, x.numel())
        return out.view(torch.bool)
