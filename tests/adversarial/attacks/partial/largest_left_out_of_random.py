"""Leaves out the pass for the largest element: right for moderate numbers, wrong for large ones.

row: part of the rows or elements; input-independent shortcuts
problem: problems/softmax_dropout.py
backend: cpp
screen: passes
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void softmax_dropout(const float* x, float* y, int64_t rows, int64_t cols, int64_t seed) {
  for (int64_t i = 0; i < rows; i++) {
    const float* a = x + i * cols;
    float* b = y + i * cols;
    float sums[16] = {0};
    for (int64_t j = 0; j < cols; j++) { float e = expf(a[j]); b[j] = e; sums[j % 16] += e; }
    float sum = 0;
    for (int k = 0; k < 16; k++) sum += sums[k];
    float scale = 1.0f / (0.75f * sum);
    for (int64_t j = 0; j < cols; j++) {
      uint64_t z = (uint64_t)seed * 0x9e3779b97f4a7c15ull + (uint64_t)(i * cols + j) * 0xd1342543de82ef95ull;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
      b[j] = (uint32_t)(z >> 32) >= 0x40000000u ? b[j] * scale : 0.0f;
    }
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.softmax_dropout(x, y, x.shape[0], x.shape[1], int(torch.randint(1 << 62, ())))
        return y
