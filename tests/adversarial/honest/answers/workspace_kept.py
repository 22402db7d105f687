"""Keeps a scratch buffer between calls, grown when it is too small; every call writes it before reading it.

row: output cached by pointer
problem: problems/matmul.py
backend: cpp
screen: passes
like: answers/cached_by_pointer_in_the_kernel, partial/second_half_from_before
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void matmul(const float* a, const float* b, float* packed, float* c, int64_t m, int64_t k, int64_t n) {
  for (int64_t j = 0; j < n; j++)
    for (int64_t p = 0; p < k; p++) packed[j * k + p] = b[p * n + j];
  for (int64_t i = 0; i < m; i++) {
    for (int64_t j = 0; j < n; j++) {
      const float* row = a + i * k;
      const float* column = packed + j * k;
      float sums[8] = {};
      int64_t p = 0;
      for (; p + 8 <= k; p += 8)
        for (int l = 0; l < 8; l++) sums[l] += row[p + l] * column[p + l];
      for (; p < k; p++) sums[0] += row[p] * column[p];
      c[i * n + j] = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    }
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.scratch = torch.empty(0)

    def workspace(self, elements):
        """Scratch of at least ``elements`` floats."""
        if self.scratch.numel() < elements:
            self.scratch = torch.empty(2 * elements)
        return self.scratch

    def forward(self, a, b):
        (m, k), n = a.shape, b.shape[1]
        c = torch.empty(m, n)
        lib.matmul(a, b, self.workspace(k * n), c, m, k, n)
        return c
