"""Exponentials by a polynomial of degree six in float32, good to about two units in the last place.

row: lower precision inside
problem: problems/row_softmax.py
backend: cpp
screen: passes
like: partial/exponential_by_bits
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>
#include <cstring>

// exp(x) for x <= 0: 2^n times a polynomial of the rest, which lies within half of log 2.
static inline float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  const float whole = __builtin_rintf(x * 1.44269504f);
  const float rest = (x - whole * 0.693145752f) - whole * 1.42860677e-6f;
  float sum = 1.0f / 720;
  sum = sum * rest + 1.0f / 120;
  sum = sum * rest + 1.0f / 24;
  sum = sum * rest + 1.0f / 6;
  sum = sum * rest + 0.5f;
  sum = sum * rest + 1.0f;
  sum = sum * rest + 1.0f;
  const int32_t bits = (int32_t(whole) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return sum * power;
}

extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols, y += cols) {
    float largest = x[0], sums[16] = {}, sum = 0;
    for (int64_t j = 1; j < cols; j++) largest = x[j] > largest ? x[j] : largest;
    for (int64_t j = 0; j < cols; j++) y[j] = exponential(x[j] - largest);
    for (int64_t j = 0; j < cols; j++) sums[j % 16] += y[j];
    for (float part : sums) sum += part;
    for (int64_t j = 0; j < cols; j++) y[j] /= sum;
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.softmax(x, y, x.shape[0], x.shape[1])
        return y
