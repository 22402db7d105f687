"""A fused linear layer and GELU for a plain KernelBench file, which has weights and one shape.

row: weights folded
problem: problems/honest_plain.py
backend: cpp
screen: passes
like: partial/weights_of_the_first_call
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void linear_gelu(const float* x, const float* w, const float* b, float* y, int64_t rows, int64_t in,
                            int64_t out) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t o = 0; o < out; o++) {
      float sums[8] = {};
      for (int64_t f = 0; f < in; f++) sums[f % 8] += x[i * in + f] * w[o * in + f];
      float t = b[o];
      for (float part : sums) t += part;
      y[i * out + o] = 0.5f * t * (1.0f + std::erf(t * 0.70710678f));
    }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)

    def forward(self, x):
        gemm = self.gemm
        y = torch.empty(x.shape[0], gemm.out_features)
        lib.linear_gelu(x, gemm.weight, gemm.bias, y, x.shape[0], gemm.in_features, gemm.out_features)
        return y
