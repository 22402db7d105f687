"""Hands halves of the rows to a thread pool and waits for both results within the call.

row: threads and deferred work
problem: problems/row_sum.py
backend: cpp
screen: passes
like: timing/finished_by_a_python_thread
"""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void row_sum(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) {
    double sum = 0;
    for (int64_t j = 0; j < cols; j++) sum += x[i * cols + j];
    y[i] = float(sum);
  }
}
"""
lib = cpp(SOURCE)


def sum_rows(x, y):
    lib.row_sum(x, y, x.shape[0], x.shape[1])


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0])
        half = x.shape[0] // 2
        with ThreadPoolExecutor(max_workers=2) as pool:
            for done in [pool.submit(sum_rows, x[:half], y[:half]), pool.submit(sum_rows, x[half:], y[half:])]:
                done.result()
        return y
