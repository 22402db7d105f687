"""Takes uninitialised memory for its output and then writes every element of it.

row: uninitialised memory
problem: problems/row_softmax.py
backend: cpp
screen: passes
like: answers/uninitialised_output
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols, y += cols) {
    float largest = -INFINITY;
    for (int64_t j = 0; j < cols; j++) largest = std::fmax(largest, x[j]);
    float sums[16] = {};
    for (int64_t j = 0; j < cols; j++) sums[j % 16] += y[j] = std::exp(x[j] - largest);
    float sum = 0;
    for (float part : sums) sum += part;
    for (int64_t j = 0; j < cols; j++) y[j] /= sum;
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape, dtype=x.dtype)
        lib.softmax(x, y, x.shape[0], x.shape[1])
        return y
