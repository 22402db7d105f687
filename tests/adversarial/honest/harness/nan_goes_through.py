"""Lets NaN through by comparing the way round that keeps it, as the reference does.

row: NaN as a wildcard
problem: problems/honest_batch_norm.py
backend: cpp
screen: passes
like: harness/nan_everywhere
"""

import torch
from torch import nn

from kernelwright.inline import cpp

STATE_MAP = {
    "norm.weight": "weight",
    "norm.bias": "bias",
    "norm.running_mean": "mean",
    "norm.running_var": "variance",
    "norm.num_batches_tracked": "batches",
}
SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void batch_norm_relu(const float* x, const float* mean, const float* variance, const float* weight,
                                const float* bias, float* y, int64_t planes, int64_t channels, int64_t pixels) {
  for (int64_t p = 0; p < planes; p++) {
    const int64_t c = p % channels;
    const float factor = weight[c] / std::sqrt(variance[c] + 1e-5f);
    for (int64_t i = p * pixels; i < (p + 1) * pixels; i++) {
      const float t = (x[i] - mean[c]) * factor + bias[c];
      y[i] = t <= 0 ? 0 : t;  // NaN is not <= 0
    }
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))
        self.register_buffer("batches", torch.tensor(0))

    def forward(self, x):
        y = torch.empty_like(x)
        planes, channels, pixels = x.shape[0] * x.shape[1], x.shape[1], x[0, 0].numel()
        lib.batch_norm_relu(x, self.mean, self.variance, self.weight, self.bias, y, planes, channels, pixels)
        return y
