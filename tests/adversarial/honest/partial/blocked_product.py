"""A matrix product in register blocks of four rows, with edges of their own.

row: part of the rows or elements
problem: problems/matmul.py
backend: cpp
screen: passes
like: partial/one_row_of_the_last_block
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <algorithm>
#include <cstdint>

template <int HEIGHT>
static void block(const float* a, const float* b, float* c, int64_t k, int64_t n, int64_t from, int64_t width) {
  float sums[HEIGHT][16] = {};
  for (int64_t p = 0; p < k; p++)
    for (int r = 0; r < HEIGHT; r++)
      for (int64_t j = 0; j < width; j++) sums[r][j] += a[r * k + p] * b[p * n + from + j];
  for (int r = 0; r < HEIGHT; r++) std::copy_n(sums[r], width, c + r * n + from);
}

extern "C" void matmul(const float* a, const float* b, float* c, int64_t m, int64_t k, int64_t n) {
  for (int64_t from = 0; from < n; from += 16) {
    const int64_t width = std::min<int64_t>(16, n - from);
    int64_t i = 0;
    for (; i + 4 <= m; i += 4) block<4>(a + i * k, b, c + i * n, k, n, from, width);
    for (; i < m; i++) block<1>(a + i * k, b, c + i * n, k, n, from, width);
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, a, b):
        c = torch.empty(a.shape[0], b.shape[1])
        lib.matmul(a, b, c, a.shape[0], a.shape[1], b.shape[1])
        return c
