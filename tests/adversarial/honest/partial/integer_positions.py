"""Returns 64-bit positions that it found as 32-bit ones inside.

row: wrong dtype
problem: problems/honest_argmax.py
backend: cpp
screen: passes
like: partial/integers_called_floats
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void argmax(const float* x, int64_t* y, int64_t rows, int32_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols) {
    int32_t at = 0;
    for (int32_t j = 1; j < cols; j++) at = x[j] > x[at] ? j : at;
    y[i] = at;
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], dtype=torch.long)
        lib.argmax(x, y, x.shape[0], x.shape[1])
        return y
