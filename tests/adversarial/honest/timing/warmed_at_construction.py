"""Runs its kernel once on zeros at construction, so that its code is paged in before the first call.

row: slow warm-up
problem: problems/bias_gelu.py
backend: cpp
screen: passes
like: timing/slow_warm_up
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void bias_gelu(const float* x, const float* bias, float* y, int64_t rows, int64_t cols) {
  constexpr float ROOT = 0.7978845608028654f;
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) {
      const float t = x[i * cols + j] + bias[j];
      y[i * cols + j] = 0.5f * t * (1.0f + tanhf(ROOT * (t + 0.044715f * t * t * t)));
    }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))
        with torch.no_grad():
            self.forward(torch.zeros(1, cols))

    def forward(self, x):
        y = torch.empty_like(x)
        lib.bias_gelu(x, self.bias, y, x.shape[0], x.shape[1])
        return y
