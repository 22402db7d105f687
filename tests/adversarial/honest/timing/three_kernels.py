"""Launches three kernels of its own one after another, with intermediate results between them.

row: shifting work between calls
problem: problems/row_softmax.py
backend: cpp
screen: passes
like: timing/done_in_the_next_call
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" {

void row_max(const float* x, float* largest, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) {
    float top = -INFINITY;
    for (int64_t j = 0; j < cols; j++) top = x[i * cols + j] > top ? x[i * cols + j] : top;
    largest[i] = top;
  }
}

void row_exp(const float* x, const float* largest, float* y, float* sums, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) {
    double sum = 0;
    for (int64_t j = 0; j < cols; j++) sum += y[i * cols + j] = expf(x[i * cols + j] - largest[i]);
    sums[i] = float(sum);
  }
}

void row_divide(float* y, const float* sums, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) y[i * cols + j] /= sums[i];
}

}  // extern "C"
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        y, largest, sums = torch.empty_like(x), torch.empty(rows), torch.empty(rows)
        lib.row_max(x, largest, rows, cols)
        lib.row_exp(x, largest, y, sums, rows, cols)
        lib.row_divide(y, sums, rows, cols)
        return y
