"""Built with -ffast-math, which reorders a sum and changes nothing that the error budget sees.

row: lower precision inside
problem: problems/row_softmax.py
backend: cpp
screen: passes
like: partial/exponential_by_bits
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void softmax(const float* __restrict__ x, float* __restrict__ y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols, y += cols) {
    float largest = x[0];
    for (int64_t j = 1; j < cols; j++) largest = x[j] > largest ? x[j] : largest;
    float sum = 0;
    for (int64_t j = 0; j < cols; j++) {
      y[j] = std::exp(x[j] - largest);
      sum += y[j];
    }
    for (int64_t j = 0; j < cols; j++) y[j] /= sum;
  }
}
"""
lib = cpp(SOURCE, flags=["-ffast-math", "-fno-math-errno"])


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.softmax(x, y, x.shape[0], x.shape[1])
        return y
