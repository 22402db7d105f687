"""Finds maximum and sum in one pass over each row (online softmax) and scales in a second one.

row: lower precision inside
problem: problems/row_softmax.py
backend: cpp
screen: passes
like: partial/largest_not_subtracted
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t cols) {
  constexpr int LANES = 8;
  for (int64_t i = 0; i < rows; i++, x += cols, y += cols) {
    float largest[LANES], sum[LANES] = {};
    for (int l = 0; l < LANES; l++) largest[l] = -INFINITY;
    for (int64_t j = 0; j < cols; j++) {
      const int l = j % LANES;
      if (x[j] > largest[l]) {
        sum[l] = sum[l] * std::exp(largest[l] - x[j]) + 1.0f;
        largest[l] = x[j];
      } else {
        sum[l] += std::exp(x[j] - largest[l]);
      }
    }
    float top = -INFINITY, total = 0;
    for (int l = 0; l < LANES; l++) top = std::fmax(top, largest[l]);
    for (int l = 0; l < LANES; l++) total += sum[l] * std::exp(largest[l] - top);
    for (int64_t j = 0; j < cols; j++) y[j] = std::exp(x[j] - top) / total;
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.softmax(x, y, x.shape[0], x.shape[1])
        return y
