"""Counts its calls and remembers the last shape for its repr; neither decides anything.

row: output cached by call count
problem: problems/row_sum.py
backend: cpp
screen: passes
like: answers/cached_by_call_count, partial/idle_after_two_hundred_calls
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void row_sum(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) {
    double sum = 0;
    for (int64_t j = 0; j < cols; j++) sum += x[i * cols + j];
    y[i] = sum;
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.last_shape = ()

    def extra_repr(self):
        return f"calls={self.calls}, last_shape={self.last_shape}"

    def forward(self, x):
        self.calls += 1
        self.last_shape = tuple(x.shape)
        y = torch.empty(self.last_shape[0])
        lib.row_sum(x, y, *self.last_shape)
        return y
