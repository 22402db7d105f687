"""Integer arithmetic in 64 bits inside, narrowed to the 32 bits of the result.

row: wrong dtype
problem: problems/honest_integers.py
backend: cpp
screen: passes
like: partial/integers_called_floats
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void choose(const int32_t* x, const int32_t* y, int32_t* out, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const int64_t a = x[i], b = y[i];
    out[i] = int32_t(a > b ? a * 3 - b : b >> 1);
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        lib.choose(x, y, out, x.numel())
        return out
