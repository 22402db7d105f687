"""Marks its kernel for torch's profiler, and synchronises a GPU where its input lies on one.

row: patched time, events, synchronize, allclose
problem: problems/honest_cumsum.py
backend: cpp
screen: passes
like: timing/clock_patched, timing/comparison_patched
"""

import torch
from torch import nn
from torch.profiler import record_function

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void cumsum(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) {
    double sum = 0;
    for (int64_t j = 0; j < cols; j++) y[i * cols + j] = float(sum += x[i * cols + j]);
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        if x.is_cuda:
            torch.cuda.synchronize()
            x = x.cpu()
        y = torch.empty_like(x)
        with record_function("cumsum"):
            lib.cumsum(x, y, x.shape[0], x.shape[1])
        return y
