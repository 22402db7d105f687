"""Built without fused multiply-add: every product is rounded before it is added.

row: lower precision inside
problem: problems/matmul.py
backend: cpp
screen: passes
like: partial/both_operands_in_tf32
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>
#include <cstring>

extern "C" void matmul(const float* a, const float* b, float* c, int64_t m, int64_t k, int64_t n) {
  memset(c, 0, sizeof(float) * m * n);
  for (int64_t i = 0; i < m; i++)
    for (int64_t p = 0; p < k; p++)
      for (int64_t j = 0; j < n; j++) c[i * n + j] += a[i * k + p] * b[p * n + j];
}
"""
lib = cpp(SOURCE, flags=("-ffp-contract=off", "-O2"))


class ModelNew(nn.Module):
    def forward(self, a, b):
        c = torch.empty(a.shape[0], b.shape[1])
        lib.matmul(a, b, c, a.shape[0], a.shape[1], b.shape[1])
        return c
