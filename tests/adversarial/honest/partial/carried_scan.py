"""Prefix sums in blocks that carry their total on; the carry is in float64.

row: part of the rows or elements
problem: problems/honest_cumsum.py
backend: cpp
screen: passes
like: partial/second_half_from_before
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <algorithm>
#include <cstdint>

extern "C" void cumsum(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols, y += cols) {
    double carry = 0;
    for (int64_t start = 0; start < cols; start += 32) {
      const int64_t end = std::min(cols, start + 32);
      float sum = 0;
      for (int64_t j = start; j < end; j++) y[j] = float(carry + (sum += x[j]));
      carry += sum;
    }
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.cumsum(x, y, x.shape[0], x.shape[1])
        return y
