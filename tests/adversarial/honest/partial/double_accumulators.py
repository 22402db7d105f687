"""Computes in float64 throughout and rounds once: more precise than the reference.

row: lower precision inside
problem: problems/matmul.py
backend: cpp
screen: passes
like: partial/double_precision_output
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>
#include <vector>

extern "C" void matmul(const float* a, const float* b, float* c, int64_t m, int64_t k, int64_t n) {
  std::vector<double> row(n);
  for (int64_t i = 0; i < m; i++) {
    row.assign(n, 0.0);
    for (int64_t p = 0; p < k; p++)
      for (int64_t j = 0; j < n; j++) row[j] += double(a[i * k + p]) * b[p * n + j];
    for (int64_t j = 0; j < n; j++) c[i * n + j] = float(row[j]);
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, a, b):
        c = torch.empty(a.shape[0], b.shape[1])
        lib.matmul(a, b, c, a.shape[0], a.shape[1], b.shape[1])
        return c
