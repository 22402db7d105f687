"""Keeps scratch memory in a thread_local vector in C++, written before it is read in every call.

row: device-global caches
problem: problems/matmul.py
backend: cpp
screen: passes
like: answers/cached_by_pointer_in_the_kernel, timing/cache_shared_between_processes
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>
#include <vector>

extern "C" void matmul(const float* a, const float* b, float* c, int64_t m, int64_t k, int64_t n) {
  static thread_local std::vector<float> panel;
  panel.resize(k * n);
  for (int64_t p = 0; p < k; p++)
    for (int64_t j = 0; j < n; j++) panel[j * k + p] = b[p * n + j];
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      float sums[4] = {};
      for (int64_t p = 0; p < k; p++) sums[p % 4] += a[i * k + p] * panel[j * k + p];
      c[i * n + j] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, a, b):
        c = torch.empty(a.shape[0], b.shape[1])
        lib.matmul(a, b, c, a.shape[0], a.shape[1], b.shape[1])
        return c
