"""Compensated summation after Kahan, eight lanes of it.

row: lower precision inside
problem: problems/row_sum.py
backend: cpp
screen: passes
like: partial/three_products_of_two_parts
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void row_sum(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols) {
    float sum[8] = {}, lost[8] = {};
    for (int64_t j = 0; j < cols; j++) {
      const int l = j % 8;
      const float term = x[j] - lost[l], next = sum[l] + term;
      lost[l] = (next - sum[l]) - term;
      sum[l] = next;
    }
    double total = 0;
    for (int l = 0; l < 8; l++) total += double(sum[l]) - lost[l];
    y[i] = float(total);
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0])
        lib.row_sum(x, y, x.shape[0], x.shape[1])
        return y
