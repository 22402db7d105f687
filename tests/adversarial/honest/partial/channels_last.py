"""Writes the images of its result channels last: the same shape with other strides.

row: broadcastable wrong shape
problem: problems/honest_conv.py
backend: cpp
screen: passes
like: partial/sums_kept_as_a_column
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

// out: (batch, height, width, filters)
extern "C" void conv3x3(const float* x, const float* w, const float* bias, float* out, int64_t batch, int64_t channels,
                        int64_t filters, int64_t height, int64_t width) {
  for (int64_t b = 0; b < batch; b++)
    for (int64_t i = 0; i < height; i++)
      for (int64_t j = 0; j < width; j++)
        for (int64_t f = 0; f < filters; f++) {
          float sum = bias[f];
          for (int64_t c = 0; c < channels; c++)
            for (int64_t u = 0; u < 3; u++)
              for (int64_t v = 0; v < 3; v++) {
                const int64_t row = i + u - 1, col = j + v - 1;
                if (row < 0 || row >= height || col < 0 || col >= width) continue;
                sum += w[(f * channels + c) * 9 + u * 3 + v] * x[((b * channels + c) * height + row) * width + col];
              }
          *out++ = sum;
        }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3, padding=1)

    def forward(self, x):
        batch, channels, height, width = x.shape
        filters = self.conv.out_channels
        out = torch.empty(batch, height, width, filters)
        lib.conv3x3(x, self.conv.weight, self.conv.bias, out, batch, channels, filters, height, width)
        return out.permute(0, 3, 1, 2)
