"""Raises for inputs that its kernel does not take, and flattens what has more than two dimensions.

row: part of the rows or elements
problem: problems/row_sum.py
backend: cpp
screen: passes
like: harness/error_that_excuses
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void row_sum(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) {
    float sums[32] = {};
    for (int64_t j = 0; j < cols; j++) sums[j % 32] += x[i * cols + j];
    for (int step = 16; step; step /= 2)
      for (int k = 0; k < step; k++) sums[k] += sums[k + step];
    y[i] = sums[0];
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        if x.dtype != torch.float32:
            raise TypeError(f"float32 expected, {x.dtype} given")
        if x.dim() == 0:
            raise ValueError("at least one dimension expected")
        *lead, cols = x.shape
        rows = x.contiguous().view(-1, cols)
        y = torch.empty(rows.shape[0])
        lib.row_sum(rows, y, rows.shape[0], cols)
        return y.view(lead)
