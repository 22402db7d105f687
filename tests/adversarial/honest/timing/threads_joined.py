"""Starts two C++ threads for a call and joins both before it returns.

row: threads and deferred work
problem: problems/row_sum.py
backend: cpp
screen: passes
like: timing/finished_by_a_thread
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>
#include <thread>

static void sum_rows(const float* x, float* y, int64_t from, int64_t to, int64_t cols) {
  for (int64_t i = from; i < to; i++) {
    float sums[16] = {};
    for (int64_t j = 0; j < cols; j++) sums[j % 16] += x[i * cols + j];
    float sum = 0;
    for (float part : sums) sum += part;
    y[i] = sum;
  }
}

extern "C" void row_sum(const float* x, float* y, int64_t rows, int64_t cols) {
  std::thread first(sum_rows, x, y, 0, rows / 2, cols);
  std::thread second([=] { sum_rows(x, y, rows / 2, rows, cols); });
  first.join();
  second.join();
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0])
        lib.row_sum(x, y, x.shape[0], x.shape[1])
        return y
