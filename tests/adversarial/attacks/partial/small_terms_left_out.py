"""Takes every exponential for zero that is less than a hundredth of the largest one, most of a row.

row: part of the rows or elements; lower precision inside
problem: problems/row_softmax.py
backend: cpp
screen: passes
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>
extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) {
    const float* a = x + i * cols;
    float largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j < cols; j++) largest = a[j] > largest ? a[j] : largest;
    for (int64_t j = 0; j < cols; j++) {
      float e = a[j] > largest - 4.6f ? expf(a[j] - largest) : 0.0f;
      y[i * cols + j] = e;
      sum += e;
    }
    for (int64_t j = 0; j < cols; j++) y[i * cols + j] /= sum;
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.softmax(x, y, x.shape[0], x.shape[1])
        return y
