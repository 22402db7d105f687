"""Sorts by the bits of the numbers, byte by byte, whatever they are.

row: input-independent shortcuts
problem: problems/uniform_argsort.py
backend: cpp
screen: passes
like: timing/indices_idle_on_uniform_rows
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" void argsort(const float* x, int64_t* order, int64_t rows, int64_t cols) {
  std::vector<uint64_t> from(cols), to(cols);
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t j = 0; j < cols; j++) {
      uint32_t bits;
      memcpy(&bits, x + i * cols + j, 4);
      bits ^= bits >> 31 ? 0xffffffffu : 0x80000000u;
      from[j] = (uint64_t)bits << 32 | (uint64_t)j;
    }
    for (int shift = 32; shift < 64; shift += 8) {
      int64_t start[257] = {0};
      for (int64_t j = 0; j < cols; j++) start[1 + ((from[j] >> shift) & 255)]++;
      for (int k = 0; k < 256; k++) start[k + 1] += start[k];
      for (int64_t j = 0; j < cols; j++) to[start[(from[j] >> shift) & 255]++] = from[j];
      from.swap(to);
    }
    for (int64_t j = 0; j < cols; j++) order[i * cols + j] = (int64_t)(from[j] & 0xffffffffu);
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        order = torch.empty(x.shape, dtype=torch.int64)
        lib.argsort(x, order, x.shape[0], x.shape[1])
        return order
