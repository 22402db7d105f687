"""Packs weights once, on the first call: the problem declares them to be constants.

row: weights folded
problem: problems/honest_constant_weights.py
backend: cpp
screen: passes
like: partial/weights_of_the_first_call, partial/weights_by_version
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void linear(const float* x, const float* packed, const float* bias, float* y, int64_t rows,
                       int64_t features, int64_t outputs) {
  for (int64_t i = 0; i < rows; i++) {
    float* out = y + i * outputs;
    for (int64_t o = 0; o < outputs; o++) out[o] = bias[o];
    for (int64_t f = 0; f < features; f++) {
      const float value = x[i * features + f];
      for (int64_t o = 0; o < outputs; o++) out[o] += value * packed[f * outputs + o];
    }
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 32)
        self.packed = None

    def forward(self, x):
        if self.packed is None:
            self.packed = self.linear.weight.detach().t().contiguous()
        features, outputs = self.packed.shape
        y = torch.empty(x.shape[0], outputs)
        lib.linear(x, self.packed, self.linear.bias, y, x.shape[0], features, outputs)
        return y
