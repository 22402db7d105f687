"""Alternates between two scratch buffers of its own while it adds columns up; what it returns is fresh memory.

row: super-batching of pending calls
problem: problems/row_sum.py
backend: cpp
screen: passes
like: timing/eight_calls_at_once, partial/second_half_from_before
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>
#include <utility>

// One level of a tree of sums: y[i] = x[2 i] + x[2 i + 1], an odd last element goes over as it is.
static int64_t halve(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n / 2; i++) y[i] = x[2 * i] + x[2 * i + 1];
  if (n % 2) y[n / 2] = x[n - 1];
  return (n + 1) / 2;
}

extern "C" void row_sum(const float* x, float* y, float* front, float* back, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) {
    const float* from = x + i * cols;
    float* to = front;
    for (int64_t n = cols; n > 1; std::swap(front, back), from = back, to = front) n = halve(from, to, n);
    y[i] = cols == 1 ? x[i] : from[0];
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = self.back = torch.empty(0)

    def forward(self, x):
        rows, cols = x.shape
        if self.front.numel() < cols:
            self.front, self.back = torch.empty(cols), torch.empty(cols)
        y = torch.empty(rows)
        lib.row_sum(x, y, self.front, self.back, rows, cols)
        return y
