"""Remembers the tiling of a shape by functools.lru_cache.

row: output cached by content
problem: problems/row_sum.py
backend: cpp
screen: passes
like: answers/cached_by_content
"""

import functools

from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void row_sum(const float* x, float* y, int64_t rows, int64_t cols, int64_t tile) {
  for (int64_t i = 0; i < rows; i++) {
    double total = 0;
    for (int64_t start = 0; start < cols; start += tile) {
      const int64_t end = start + tile < cols ? start + tile : cols;
      float part = 0;
      for (int64_t j = start; j < end; j++) part += x[i * cols + j];
      total += part;
    }
    y[i] = float(total);
  }
}
"""
lib = cpp(SOURCE)


@functools.lru_cache(maxsize=64)
def tile_of(cols: int) -> int:
    """Elements that are summed up in float32 before they join the total: about the square root of a row."""
    tile = 8
    while tile * tile < cols:
        tile *= 2
    return tile


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        y = x.new_empty(rows)
        lib.row_sum(x, y, rows, cols, tile_of(cols))
        return y
