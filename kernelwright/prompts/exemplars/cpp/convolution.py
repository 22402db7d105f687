"""Each input row is copied once between two zeros, so that the inner loop has no border case and vectorises."""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <algorithm>
#include <cstdint>
#include <vector>

extern "C" void depthwise(const float* __restrict x, const float* __restrict weight, float* __restrict y,
                          int64_t planes, int64_t channels, int64_t height, int64_t width) {
#pragma omp parallel for
  for (int64_t p = 0; p < planes; p++) {
    const float* w = weight + p % channels * 9;
    const int64_t pitch = width + 2;
    std::vector<float> padded((height + 2) * pitch, 0.0f);
    for (int64_t i = 0; i < height; i++)
      std::copy_n(x + (p * height + i) * width, width, padded.data() + (i + 1) * pitch + 1);
    for (int64_t i = 0; i < height; i++) {
      const float *a = padded.data() + i * pitch, *b = a + pitch, *c = b + pitch;
      float* out = y + (p * height + i) * width;
      for (int64_t j = 0; j < width; j++)
        out[j] = a[j] * w[0] + a[j + 1] * w[1] + a[j + 2] * w[2] + b[j] * w[3] + b[j + 1] * w[4] + b[j + 2] * w[5] +
                 c[j] * w[6] + c[j + 1] * w[7] + c[j + 2] * w[8];
    }
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        y = torch.empty_like(x)
        lib.depthwise(x, self.conv.weight, y, batch * channels, channels, height, width)
        return y
