"""Declares its layers in another order than the reference, under the same names, and keeps the hidden width as it is.

row: hyper-parameters shrunk
problem: problems/honest_mlp.py
backend: cpp
screen: passes
like: partial/weights_of_its_own, partial/half_of_the_reduction
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void bias_relu(float* y, const float* bias, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows * cols; i++) {
    const float t = y[i] + bias[i % cols];
    y[i] = t < 0 ? 0 : t;
  }
}

extern "C" void product(const float* x, const float* w, const float* bias, float* y, int64_t rows, int64_t in,
                        int64_t out) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t o = 0; o < out; o++) {
      double sum = bias ? bias[o] : 0.0;
      for (int64_t f = 0; f < in; f++) sum += double(x[i * in + f]) * w[o * in + f];
      y[i * out + o] = float(sum);
    }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, features, hidden=64):
        super().__init__()
        self.down = nn.Linear(hidden, features)
        self.up = nn.Linear(features, hidden)

    def forward(self, x):
        rows, features = x.shape
        middle = torch.empty(rows, self.up.out_features)
        lib.product(x, self.up.weight, None, middle, rows, features, self.up.out_features)
        lib.bias_relu(middle, self.up.bias, rows, self.up.out_features)
        y = torch.empty_like(x)
        lib.product(middle, self.down.weight, self.down.bias, y, rows, self.up.out_features, features)
        return y
