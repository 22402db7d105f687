"""Cuts every other row of the first operand to TF32.

row: lower precision inside
problem: problems/matmul.py
backend: cpp
screen: passes
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>
#include <cstring>
#include <vector>

static float cut(float v, uint32_t mask) {
  uint32_t u;
  memcpy(&u, &v, 4);
  u &= mask;
  memcpy(&v, &u, 4);
  return v;
}

extern "C" void matmul(const float* a, const float* b, float* c, int64_t m, int64_t k, int64_t n) {
  std::vector<float> narrow(k * n);
  for (int64_t i = 0; i < k * n; i++) narrow[i] = b[i];
  memset(c, 0, m * n * sizeof(float));
  for (int64_t i = 0; i < m; i++)
    for (int64_t l = 0; l < k; l++) {
      float v = i % 2 ? cut(a[i * k + l], 0xffffe000u) : a[i * k + l];
      for (int64_t j = 0; j < n; j++) c[i * n + j] += v * narrow[l * n + j];
    }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, a, b):
        c = torch.empty(a.shape[0], b.shape[1])
        lib.matmul(a, b, c, a.shape[0], a.shape[1], b.shape[1])
        return c
