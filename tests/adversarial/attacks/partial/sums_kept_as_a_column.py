"""Returns the sums as a column, which broadcasts against the row that is expected.

row: broadcastable wrong shape
problem: problems/row_sum.py
backend: cpp
screen: passes
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void row_sum(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) {
    float sums[16] = {0};
    for (int64_t j = 0; j < cols; j++) sums[j % 16] += x[i * cols + j];
    float sum = 0;
    for (int k = 0; k < 16; k++) sum += sums[k];
    y[i] = sum;
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], 1)
        lib.row_sum(x, y, x.shape[0], x.shape[1])
        return y
