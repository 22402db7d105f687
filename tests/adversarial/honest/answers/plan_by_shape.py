"""Keeps plans (how wide to unroll) in a dictionary by shape, which holds nothing of the inputs.

row: output cached by pointer
problem: problems/row_softmax.py
backend: cpp
screen: passes
like: answers/cached_by_pointer, answers/cached_by_content
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

template <int LANES>
static void rows_of(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols, y += cols) {
    float largest = x[0];
    for (int64_t j = 1; j < cols; j++) largest = x[j] > largest ? x[j] : largest;
    float sums[LANES] = {};
    for (int64_t j = 0; j < cols; j++) sums[j % LANES] += y[j] = expf(x[j] - largest);
    float sum = 0;
    for (int k = 0; k < LANES; k++) sum += sums[k];
    for (int64_t j = 0; j < cols; j++) y[j] *= 1.0f / sum;
  }
}

extern "C" void softmax_wide(const float* x, float* y, int64_t rows, int64_t cols) { rows_of<32>(x, y, rows, cols); }
extern "C" void softmax_narrow(const float* x, float* y, int64_t rows, int64_t cols) { rows_of<8>(x, y, rows, cols); }
"""
lib = cpp(SOURCE)
plans = {}


def plan_for(shape):
    """The function for a shape, and the sizes that it takes."""
    if shape not in plans:
        rows, cols = shape
        plans[shape] = (lib.softmax_wide if cols >= 256 else lib.softmax_narrow, rows, cols)
    return plans[shape]


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        function, rows, cols = plan_for(tuple(x.shape))
        function(x, y, rows, cols)
        return y
