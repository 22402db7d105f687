"""Lets the compiler clone a function for several processors, which chooses by a resolver when it is loaded.

row: static constructors
problem: problems/row_sum.py
backend: cpp
screen: passes
like: build/resolver_at_load
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

#if defined(__x86_64__)
__attribute__((target_clones("avx2", "default")))
#endif
void sum_rows(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols) {
    float sums[8] = {};
    int64_t j = 0;
    for (; j + 8 <= cols; j += 8)
      for (int k = 0; k < 8; k++) sums[k] += x[j + k];
    for (; j < cols; j++) sums[0] += x[j];
    y[i] = ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
  }
}

extern "C" void row_sum(const float* x, float* y, int64_t rows, int64_t cols) { sum_rows(x, y, rows, cols); }
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0])
        lib.row_sum(x, y, x.shape[0], x.shape[1])
        return y
