"""Flushes denormals to zero inside the kernel and puts the processor's mode back before it returns.

row: lower precision inside
problem: problems/bias_gelu.py
backend: cpp
screen: passes
like: timing/flags_for_the_reference, partial/rational_tanh
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <immintrin.h>

class FlushDenormals {
 public:
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
};

extern "C" void bias_gelu(const float* x, const float* bias, float* y, int64_t rows, int64_t cols) {
  const FlushDenormals guard;
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) {
      const float t = x[i * cols + j] + bias[j];
      const float u = 0.79788456f * (t + 0.044715f * t * t * t);
      y[i * cols + j] = t / (1.0f + std::exp(-2.0f * u));  // 0.5 (1 + tanh u) = 1 / (1 + exp(-2 u))
    }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        y = torch.empty_like(x)
        lib.bias_gelu(x, self.bias, y, x.shape[0], x.shape[1])
        return y
