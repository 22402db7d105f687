"""Folds running statistics and affine weights of a batch norm into one factor and one offset, in every call.

row: weights folded
problem: problems/honest_batch_norm.py
backend: cpp
screen: passes
like: partial/weights_of_the_constructor
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void batch_norm_relu(const float* x, const float* mean, const float* variance, const float* weight,
                                const float* bias, float* y, int64_t batch, int64_t channels, int64_t pixels,
                                double epsilon) {
  for (int64_t b = 0; b < batch; b++)
    for (int64_t c = 0; c < channels; c++) {
      const double factor = weight[c] / std::sqrt(variance[c] + epsilon);
      const float scale = float(factor), offset = float(bias[c] - mean[c] * factor);
      const int64_t at = (b * channels + c) * pixels;
      for (int64_t i = at; i < at + pixels; i++) {
        const float t = x[i] * scale + offset;
        y[i] = t < 0 ? 0 : t;
      }
    }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        norm = self.norm
        y = torch.empty_like(x)
        batch, channels, height, width = x.shape
        lib.batch_norm_relu(
            x,
            norm.running_mean,
            norm.running_var,
            norm.weight,
            norm.bias,
            y,
            batch,
            channels,
            height * width,
            norm.eps,
        )
        return y
