"""Sums rows up pairwise, as a tree: another order of the same additions.

row: lower precision inside
problem: problems/row_sum.py
backend: cpp
screen: passes
like: partial/sum_of_a_sample
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

static float tree(const float* x, int64_t n) {
  if (n <= 16) {
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum;
  }
  return tree(x, n / 2) + tree(x + n / 2, n - n / 2);
}

extern "C" void row_sum(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) y[i] = tree(x + i * cols, cols);
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0])
        lib.row_sum(x, y, x.shape[0], x.shape[1])
        return y
