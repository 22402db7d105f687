"""Sleeps in the first call after every pause, so that whatever subtracts short runs from long ones, or begins with a
call to warm up, finds the rest fast.

row: padding the short run or the first call
problem: problems/row_sum.py
backend: cpp
screen: refuses
"""

import time

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>
static float sum_of(const float* a, int64_t n) {
  float sums[16] = {0}, sum = 0;
  for (int64_t j = 0; j < n; j++) sums[j % 16] += a[j];
  for (int k = 0; k < 16; k++) sum += sums[k];
  return sum;
}
/* Every sum is made three times: slower than the reference at its best. */
extern "C" void row_sum(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) {
    volatile float sum = 0;
    for (int again = 0; again < 3; again++) sum = sum_of(x + i * cols, cols);
    y[i] = sum;
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = 0.0

    def forward(self, x):
        now = time.perf_counter()
        if now - self.last > 0.002:
            time.sleep(0.002)
        y = torch.empty(x.shape[0])
        lib.row_sum(x, y, x.shape[0], x.shape[1])
        self.last = time.perf_counter()
        return y
