"""Takes the last of equal elements where the reference takes the first: torch promises neither.

row: part of the rows or elements
problem: problems/honest_argmax.py
backend: cpp
screen: passes
like: partial/one_percent_left_out
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void argmax(const float* x, int64_t* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols) {
    y[i] = cols - 1;
    for (int64_t j = cols - 2; j >= 0; j--)
      if (x[j] > x[y[i]]) y[i] = j;
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], dtype=torch.int64)
        lib.argmax(x, y, x.shape[0], x.shape[1])
        return y
