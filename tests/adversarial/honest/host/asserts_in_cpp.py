"""Asserts its sizes in C++, which would end the process by abort, and throws for what cannot be.

row: kill -1
problem: problems/honest_embedding.py
backend: cpp
screen: passes
like: harness/exit_from_the_kernel
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cassert>
#include <cstdint>
#include <cstdlib>
#include <cstring>

extern "C" void gather(const int64_t* ids, const float* table, float* y, int64_t tokens, int64_t words, int64_t width,
                       float scale) {
  assert(words > 0 && width > 0);
  for (int64_t i = 0; i < tokens; i++, y += width) {
    if (ids[i] < 0 || ids[i] >= words) abort();
    std::memcpy(y, table + ids[i] * width, width * sizeof(float));
    for (int64_t j = 0; j < width; j++) y[j] *= scale;
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.table = nn.Embedding(words, width)

    def forward(self, ids):
        words, width = self.table.weight.shape
        y = torch.empty(ids.shape[0], width)
        lib.gather(ids, self.table.weight, y, ids.shape[0], words, width, float(width) ** 0.5)
        return y
