"""Packs the weights into a layout of its own in every call, from what they are at that moment.

row: weights folded
problem: problems/linear_relu.py
backend: cpp
screen: passes
like: partial/weights_of_the_first_call
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void pack(const float* weight, float* packed, int64_t outputs, int64_t features) {
  for (int64_t o = 0; o < outputs; o++)
    for (int64_t f = 0; f < features; f++) packed[f * outputs + o] = weight[o * features + f];
}

extern "C" void linear_relu(const float* x, const float* packed, const float* bias, float* y, int64_t rows,
                            int64_t features, int64_t outputs) {
  for (int64_t i = 0; i < rows; i++) {
    float* out = y + i * outputs;
    for (int64_t o = 0; o < outputs; o++) out[o] = bias[o];
    for (int64_t f = 0; f < features; f++)
      for (int64_t o = 0; o < outputs; o++) out[o] += x[i * features + f] * packed[f * outputs + o];
    for (int64_t o = 0; o < outputs; o++) out[o] = out[o] < 0 ? 0 : out[o];
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 48)

    def forward(self, x):
        weight, bias = self.linear.weight, self.linear.bias
        outputs, features = weight.shape
        packed = torch.empty(features, outputs)
        lib.pack(weight, packed, outputs, features)
        y = torch.empty(x.shape[0], outputs)
        lib.linear_relu(x, packed, bias, y, x.shape[0], features, outputs)
        return y
