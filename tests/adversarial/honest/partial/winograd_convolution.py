"""Winograd's convolution F(2x2, 3x3): fewer products, and sums that round differently.

row: lower precision inside
problem: problems/honest_conv.py
backend: cpp
screen: passes
like: partial/three_products_of_two_parts
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>
#include <vector>

// u = G g G^T for one 3x3 filter.
static void transform_filter(const float* g, float* u) {
  float rows[4][3];
  for (int j = 0; j < 3; j++) {
    const float a = g[j], b = g[3 + j], c = g[6 + j];
    rows[0][j] = a;
    rows[1][j] = 0.5f * (a + b + c);
    rows[2][j] = 0.5f * (a - b + c);
    rows[3][j] = c;
  }
  for (int i = 0; i < 4; i++) {
    const float a = rows[i][0], b = rows[i][1], c = rows[i][2];
    u[4 * i] = a;
    u[4 * i + 1] = 0.5f * (a + b + c);
    u[4 * i + 2] = 0.5f * (a - b + c);
    u[4 * i + 3] = c;
  }
}

// v = B^T d B for one 4x4 tile.
static void transform_tile(const float* d, float* v) {
  float rows[16];
  for (int j = 0; j < 4; j++) {
    rows[j] = d[j] - d[8 + j];
    rows[4 + j] = d[4 + j] + d[8 + j];
    rows[8 + j] = d[8 + j] - d[4 + j];
    rows[12 + j] = d[4 + j] - d[12 + j];
  }
  for (int i = 0; i < 16; i += 4) {
    v[i] = rows[i] - rows[i + 2];
    v[i + 1] = rows[i + 1] + rows[i + 2];
    v[i + 2] = rows[i + 2] - rows[i + 1];
    v[i + 3] = rows[i + 1] - rows[i + 3];
  }
}

extern "C" void conv3x3(const float* x, const float* w, const float* bias, float* y, int64_t batch, int64_t channels,
                        int64_t filters, int64_t height, int64_t width) {
  std::vector<float> filter(16 * filters * channels), tile(16 * channels);
  for (int64_t i = 0; i < filters * channels; i++) transform_filter(w + 9 * i, &filter[16 * i]);
  for (int64_t b = 0; b < batch; b++)
    for (int64_t top = 0; top < height; top += 2)
      for (int64_t left = 0; left < width; left += 2) {
        for (int64_t c = 0; c < channels; c++) {
          float d[16];
          for (int k = 0; k < 16; k++) {
            const int64_t row = top - 1 + k / 4, col = left - 1 + k % 4;
            const bool inside = row >= 0 && row < height && col >= 0 && col < width;
            d[k] = inside ? x[((b * channels + c) * height + row) * width + col] : 0.0f;
          }
          transform_tile(d, &tile[16 * c]);
        }
        for (int64_t f = 0; f < filters; f++) {
          float m[16] = {};
          for (int64_t c = 0; c < channels; c++)
            for (int k = 0; k < 16; k++) m[k] += filter[16 * (f * channels + c) + k] * tile[16 * c + k];
          float half[2][4];
          for (int j = 0; j < 4; j++) {
            half[0][j] = m[j] + m[4 + j] + m[8 + j];
            half[1][j] = m[4 + j] - m[8 + j] - m[12 + j];
          }
          for (int64_t r = 0; r < 2 && top + r < height; r++) {
            float* out = y + ((b * filters + f) * height + top + r) * width + left;
            out[0] = half[r][0] + half[r][1] + half[r][2] + bias[f];
            if (left + 1 < width) out[1] = half[r][1] - half[r][2] - half[r][3] + bias[f];
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
        y = torch.empty(batch, filters, height, width)
        lib.conv3x3(x, self.conv.weight, self.conv.bias, y, batch, channels, filters, height, width)
        return y
