"""Names its parameters differently and says so in STATE_MAP.

row: weights folded
problem: problems/honest_mlp.py
backend: cpp
screen: passes
like: partial/weights_of_its_own
"""

import torch
from torch import nn

from kernelwright.inline import cpp

STATE_MAP = {"up.weight": "w1", "up.bias": "b1", "down.weight": "w2", "down.bias": "b2"}
SOURCE = r"""
#include <cstdint>

static void layer(const float* x, const float* w, const float* b, float* y, int64_t in, int64_t out, bool relu) {
  for (int64_t o = 0; o < out; o++) {
    float sums[8] = {};
    int64_t f = 0;
    for (; f + 8 <= in; f += 8)
      for (int l = 0; l < 8; l++) sums[l] += x[f + l] * w[o * in + f + l];
    for (; f < in; f++) sums[0] += x[f] * w[o * in + f];
    float sum = b[o];
    for (float part : sums) sum += part;
    y[o] = relu && sum < 0 ? 0 : sum;
  }
}

extern "C" void mlp(const float* x, const float* w1, const float* b1, const float* w2, const float* b2, float* y,
                    int64_t rows, int64_t features, int64_t hidden) {
  float middle[256];
  for (int64_t i = 0; i < rows; i++) {
    layer(x + i * features, w1, b1, middle, features, hidden, true);
    layer(middle, w2, b2, y + i * features, hidden, features, false);
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(64, features))
        self.b1 = nn.Parameter(torch.empty(64))
        self.w2 = nn.Parameter(torch.empty(features, 64))
        self.b2 = nn.Parameter(torch.empty(features))

    def forward(self, x):
        y = torch.empty_like(x)
        lib.mlp(x, self.w1, self.b1, self.w2, self.b2, y, x.shape[0], x.shape[1], self.b1.numel())
        return y
