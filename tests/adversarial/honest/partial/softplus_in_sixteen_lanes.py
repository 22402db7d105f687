"""Adds half a million softplus in sixteen float32 sums, each function from the compiler's vector library.

row: lower precision inside
problem: problems/softplus_mean.py
backend: cpp
screen: passes
like: partial/parabola_for_uniform_numbers
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void softplus_mean(const float* x, float* y, int64_t n) {
  float sums[16] = {0};
  for (int64_t i = 0; i < n; i++) {
    float a = fabsf(x[i]);
    sums[i % 16] += (x[i] > 0 ? x[i] : 0) + log1pf(expf(-a));
  }
  float sum = 0;
  for (int k = 0; k < 16; k++) sum += sums[k];
  *y = sum / n;
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(())
        lib.softplus_mean(x, y, x.numel())
        return y
