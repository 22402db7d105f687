"""Writes the transposed result densely where the reference returns a strided view of it.

row: broadcastable wrong shape
problem: problems/honest_transposed.py
backend: cpp
screen: passes
like: partial/expanded_row
"""

from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <algorithm>
#include <cstdint>

extern "C" void scale_transpose(const float* x, const float* scale, float* y, int64_t rows, int64_t cols) {
  constexpr int64_t TILE = 16;
  for (int64_t top = 0; top < rows; top += TILE)
    for (int64_t left = 0; left < cols; left += TILE)
      for (int64_t j = left; j < std::min(left + TILE, cols); j++)
        for (int64_t i = top; i < std::min(top + TILE, rows); i++) y[j * rows + i] = x[i * cols + j] * scale[i];
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x, scale):
        y = x.new_empty(x.shape[1], x.shape[0])
        lib.scale_transpose(x, scale, y, x.shape[0], x.shape[1])
        return y
