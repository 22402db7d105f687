"""Pads the rows of its result to whole cache lines and returns a view without the padding.

row: broadcastable wrong shape
problem: problems/honest_split.py
backend: cpp
screen: passes
like: partial/expanded_row, harness/claims_one_number_for_all
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void sigmoid(const float* x, float* y, int64_t rows, int64_t cols, int64_t pitch, int64_t first) {
  const int64_t width = cols / 3;
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < width; j++) y[i * pitch + j] = 1.0f / (1.0f + std::exp(-x[i * cols + first + j]));
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        width = cols // 3
        pitch = (width + 63) // 64 * 64
        parts = []
        for part in range(3):
            padded = torch.empty(rows, pitch)
            lib.sigmoid(x, padded, rows, cols, pitch, part * width)
            parts.append(padded[:, :width])
        return parts
