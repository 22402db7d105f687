"""The processor's approximate reciprocal root, refined by one step of Newton's method to float32.

row: lower precision inside
problem: problems/honest_layer_norm.py
backend: cpp
screen: passes
like: partial/one_operand_in_bfloat16
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <immintrin.h>

static inline float reciprocal_root(float x) {
  const float guess = _mm_cvtss_f32(_mm_rsqrt_ss(_mm_set_ss(x)));
  return guess * (1.5f - 0.5f * x * guess * guess);
}

extern "C" void layer_norm(const float* x, const float* w, const float* b, float* y, int64_t rows, int64_t cols,
                           float epsilon) {
  for (int64_t i = 0; i < rows; i++, x += cols, y += cols) {
    float sums[8] = {}, squares[8] = {};
    for (int64_t j = 0; j < cols; j++) sums[j % 8] += x[j];
    for (int k = 1; k < 8; k++) sums[0] += sums[k];
    const float mean = sums[0] / cols;
    for (int64_t j = 0; j < cols; j++) squares[j % 8] += (x[j] - mean) * (x[j] - mean);
    for (int k = 1; k < 8; k++) squares[0] += squares[k];
    const float factor = reciprocal_root(squares[0] / cols + epsilon);
    for (int64_t j = 0; j < cols; j++) y[j] = (x[j] - mean) * factor * w[j] + b[j];
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        y = torch.empty_like(x)
        norm = self.norm
        lib.layer_norm(x, norm.weight, norm.bias, y, x.shape[0], x.shape[1], norm.eps)
        return y
