"""Skips products with a zero on the left, where the domain admits no infinity on the right: sparsity of the data.

row: input-independent shortcuts
problem: problems/matmul.py
backend: cpp
screen: passes
like: partial/small_terms_left_out
"""

from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>
#include <cstring>

extern "C" void matmul(const float* a, const float* b, float* c, int64_t m, int64_t k, int64_t n) {
  std::memset(c, 0, m * n * sizeof(float));
  for (int64_t i = 0; i < m; i++) {
    for (int64_t p = 0; p < k; p++) {
      const float left = a[i * k + p];
      if (left == 0.0f) continue;
      for (int64_t j = 0; j < n; j++) c[i * n + j] += left * b[p * n + j];
    }
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, a, b):
        c = a.new_empty(a.shape[0], b.shape[1])
        lib.matmul(a, b, c, a.shape[0], a.shape[1], b.shape[1])
        return c
