"""Maps anonymous memory for its scratch, advises huge pages, and asks the system for the size of a cache.

row: memory by shared mmap
problem: problems/matmul.py
backend: cpp
screen: passes
like: host/mapped_memory, host/huge_pages
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>
#include <sys/mman.h>
#include <unistd.h>

static constexpr int64_t BYTES = 4 << 20;

static float* scratch() {
  static void* const memory = [] {
    void* mapped = mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return static_cast<void*>(nullptr);
    madvise(mapped, BYTES, MADV_HUGEPAGE);
    return mapped;
  }();
  return static_cast<float*>(memory);
}

extern "C" bool matmul(const float* a, const float* b, float* c, int64_t m, int64_t k, int64_t n) {
  float* packed = scratch();
  if (!packed || k * n * int64_t(sizeof(float)) > BYTES || sysconf(_SC_PAGESIZE) < 4096) return false;
  for (int64_t p = 0; p < k; p++)
    for (int64_t j = 0; j < n; j++) packed[j * k + p] = b[p * n + j];
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      double sum = 0;
      for (int64_t p = 0; p < k; p++) sum += double(a[i * k + p]) * packed[j * k + p];
      c[i * n + j] = float(sum);
    }
  return true;
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, a, b):
        c = torch.empty(a.shape[0], b.shape[1])
        if not lib.matmul(a, b, c, a.shape[0], a.shape[1], b.shape[1]):
            raise MemoryError("no scratch memory for a product of this size")
        return c
