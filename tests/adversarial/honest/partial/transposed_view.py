"""Returns a transposed view of its own contiguous result, as the reference does: the strides differ, not the values.

row: broadcastable wrong shape
problem: problems/honest_transposed.py
backend: cpp
screen: passes
like: partial/expanded_row
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void scale_rows(const float* x, const float* scale, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) y[i * cols + j] = x[i * cols + j] * scale[i];
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x, scale):
        y = torch.empty_like(x)
        lib.scale_rows(x, scale, y, x.shape[0], x.shape[1])
        return y.t()
