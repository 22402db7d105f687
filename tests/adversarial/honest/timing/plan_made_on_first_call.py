"""Makes its plan on the first call, which therefore takes longer than the others.

row: padding the short run or the first call
problem: problems/matmul.py
backend: cpp
screen: passes
like: timing/first_calls_padded
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <algorithm>
#include <cstdint>

extern "C" void plan(int64_t n, int64_t* starts, int64_t strips) {
  for (int64_t s = 0; s <= strips; s++) starts[s] = s * n / strips;
}

extern "C" void matmul(const float* a, const float* b, float* c, int64_t m, int64_t k, int64_t n,
                       const int64_t* starts, int64_t strips) {
  std::fill_n(c, m * n, 0.0f);
  for (int64_t s = 0; s < strips; s++)
    for (int64_t i = 0; i < m; i++)
      for (int64_t p = 0; p < k; p++)
        for (int64_t j = starts[s]; j < starts[s + 1]; j++) c[i * n + j] += a[i * k + p] * b[p * n + j];
}
"""
lib = cpp(SOURCE)
STRIPS = 2


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.starts = {}

    def forward(self, a, b):
        (m, k), n = a.shape, b.shape[1]
        if n not in self.starts:
            self.starts[n] = torch.empty(STRIPS + 1, dtype=torch.int64)
            lib.plan(n, self.starts[n], STRIPS)
        c = torch.empty(m, n)
        lib.matmul(a, b, c, m, k, n, self.starts[n], STRIPS)
        return c
