"""Fills a table of coefficients when its library is loaded, by the initialiser of a static array.

row: static constructors
problem: problems/honest_attention.py
backend: cpp
screen: passes
like: build/static_constructor
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

static const std::array<float, 65> ROOTS = [] {  // 1 / sqrt(width) by width
  std::array<float, 65> roots{};
  for (int width = 1; width <= 64; width++) roots[width] = float(1.0 / std::sqrt(double(width)));
  return roots;
}();

extern "C" void attention(const float* q, const float* k, const float* v, float* out, int64_t heads, int64_t length,
                          int64_t width) {
  const float scale = width <= 64 ? ROOTS[width] : 1.0f / std::sqrt(float(width));
  std::vector<float> weights(length);
  for (int64_t h = 0; h < heads; h++, k += length * width, v += length * width)
    for (int64_t i = 0; i < length; i++, q += width, out += width) {
      float largest = -INFINITY;
      for (int64_t j = 0; j <= i; j++) {
        float score = 0;
        for (int64_t c = 0; c < width; c++) score += q[c] * k[j * width + c];
        largest = std::fmax(largest, weights[j] = score * scale);
      }
      float sum = 0;
      for (int64_t j = 0; j <= i; j++) sum += weights[j] = std::exp(weights[j] - largest);
      for (int64_t c = 0; c < width; c++) {
        double value = 0;
        for (int64_t j = 0; j <= i; j++) value += weights[j] * v[j * width + c];
        out[c] = float(value / sum);
      }
    }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        batch, heads, length, width = q.shape
        out = torch.empty_like(q)
        lib.attention(q, k, v, out, batch * heads, length, width)
        return out
