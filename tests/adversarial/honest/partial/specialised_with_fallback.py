"""A fast path for the row length that is timed, and a general path for every other: both are right.

row: part of the rows or elements
problem: problems/row_softmax.py
backend: cpp
screen: passes
like: harness/fallback_for_every_shape, partial/tail_columns_left_out
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

template <int64_t FIXED>
static void softmax_rows(const float* x, float* y, int64_t rows, int64_t given) {
  const int64_t cols = FIXED ? FIXED : given;
  for (int64_t i = 0; i < rows; i++, x += cols, y += cols) {
    float largest = -INFINITY;
    for (int64_t j = 0; j < cols; j++) largest = x[j] > largest ? x[j] : largest;
    double sum = 0;
    for (int64_t j = 0; j < cols; j++) sum += y[j] = expf(x[j] - largest);
    const float factor = float(1 / sum);
    for (int64_t j = 0; j < cols; j++) y[j] *= factor;
  }
}

extern "C" void softmax_512(const float* x, float* y, int64_t rows) { softmax_rows<512>(x, y, rows, 512); }
extern "C" void softmax_any(const float* x, float* y, int64_t rows, int64_t cols) { softmax_rows<0>(x, y, rows, cols); }
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        if x.shape[1] == 512:
            lib.softmax_512(x, y, x.shape[0])
        else:
            lib.softmax_any(x, y, x.shape[0], x.shape[1])
        return y
