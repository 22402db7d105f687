"""Clips the window of a convolution at the image's edge instead of padding the image.

row: part of the rows or elements
problem: problems/honest_conv.py
backend: cpp
screen: passes
like: partial/tail_columns_left_out
"""

from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <algorithm>
#include <cstdint>

extern "C" void conv3x3(const float* x, const float* w, const float* bias, float* y, int64_t batch, int64_t channels,
                        int64_t filters, int64_t height, int64_t width) {
  const int64_t pixels = height * width;
  for (int64_t b = 0; b < batch; b++)
    for (int64_t f = 0; f < filters; f++) {
      float* out = y + (b * filters + f) * pixels;
      std::fill(out, out + pixels, bias[f]);
      for (int64_t c = 0; c < channels; c++) {
        const float* image = x + (b * channels + c) * pixels;
        for (int64_t tap = 0; tap < 9; tap++) {
          const int64_t dy = tap / 3 - 1, dx = tap % 3 - 1;
          const float weight = w[(f * channels + c) * 9 + tap];
          const int64_t left = std::max<int64_t>(0, -dx), right = std::min(width, width - dx);
          for (int64_t row = std::max<int64_t>(0, -dy); row < std::min(height, height - dy); row++)
            for (int64_t col = left; col < right; col++)
              out[row * width + col] += weight * image[(row + dy) * width + col + dx];
        }
      }
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
        y = x.new_empty(batch, filters, height, width)
        lib.conv3x3(x, self.conv.weight, self.conv.bias, y, batch, channels, filters, height, width)
        return y
