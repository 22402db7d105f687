"""Mean and variance after Welford, in eight lanes that are merged after Chan.

row: lower precision inside
problem: problems/honest_layer_norm.py
backend: cpp
screen: passes
like: partial/sum_of_a_sample
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

struct Moments {
  float count = 0, mean = 0, squares = 0;

  void add(float x) {
    count += 1;
    const float step = x - mean;
    mean += step / count;
    squares += step * (x - mean);
  }

  void merge(const Moments& other) {
    if (other.count == 0) return;
    const float both = count + other.count, gap = other.mean - mean;
    mean += gap * other.count / both;
    squares += other.squares + gap * gap * count * other.count / both;
    count = both;
  }
};

extern "C" void layer_norm(const float* x, const float* weight, const float* bias, float* y, int64_t rows,
                           int64_t cols, float epsilon) {
  for (int64_t i = 0; i < rows; i++, x += cols, y += cols) {
    Moments lanes[8];
    for (int64_t j = 0; j < cols; j++) lanes[j % 8].add(x[j]);
    for (int l = 1; l < 8; l++) lanes[0].merge(lanes[l]);
    const float factor = 1.0f / std::sqrt(lanes[0].squares / cols + epsilon);
    for (int64_t j = 0; j < cols; j++) y[j] = (x[j] - lanes[0].mean) * factor * weight[j] + bias[j];
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
