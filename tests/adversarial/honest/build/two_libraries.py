"""Builds two libraries of its own, one of them with pragmas that tune code.

row: poisoned caches and warm workers
problem: problems/honest_layer_norm.py
backend: cpp
screen: passes
like: build/build_storm, build/foreign_pragmas
"""

import torch
from torch import nn

from kernelwright.inline import cpp

MOMENTS = r"""
#include <cstdint>
#pragma GCC optimize("O3", "unroll-loops")

extern "C" void moments(const float* x, float* mean, float* variance, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols) {
    double sum = 0, squares = 0;
#pragma GCC ivdep
    for (int64_t j = 0; j < cols; j++) sum += x[j];
    for (int64_t j = 0; j < cols; j++) squares += (x[j] - sum / cols) * (x[j] - sum / cols);
    mean[i] = float(sum / cols);
    variance[i] = float(squares / cols);
  }
}
"""
NORMALISE = r"""
#include <cmath>
#include <cstdint>
#pragma once

extern "C" __attribute__((hot, noinline)) void normalise(
    const float* x, const float* mean, const float* variance, const float* w, const float* b, float* y, int64_t rows,
    int64_t cols, float epsilon) {
  for (int64_t i = 0; i < rows; i++) {
    const float factor = 1.0f / std::sqrt(variance[i] + epsilon);
#pragma GCC unroll 4
    for (int64_t j = 0; j < cols; j++) y[i * cols + j] = (x[i * cols + j] - mean[i]) * factor * w[j] + b[j];
  }
}
"""
statistics = cpp(MOMENTS)
elementwise = cpp(NORMALISE, flags=["-w"])


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        rows, cols = x.shape
        mean, variance, y = x.new_empty(rows), x.new_empty(rows), torch.empty_like(x)
        statistics.moments(x, mean, variance, rows, cols)
        weight, bias = self.norm.weight, self.norm.bias
        elementwise.normalise(x, mean, variance, weight, bias, y, rows, cols, self.norm.eps)
        return y
