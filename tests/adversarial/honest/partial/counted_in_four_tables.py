"""Counts in four tables of 32 bits, so that equal neighbours do not wait for each other, and adds them up.

row: narrow counters that hold what there can be
problem: problems/histogram.py
backend: cpp
screen: passes
like: partial/bytes_that_overflow
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>
#include <cstring>

extern "C" void histogram(const int64_t* ids, int64_t* counts, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) {
    uint32_t found[4][256];
    memset(found, 0, sizeof found);
    for (int64_t j = 0; j < cols; j++) found[j & 3][ids[i * cols + j] & 255]++;
    for (int64_t k = 0; k < 256; k++) counts[i * 256 + k] = found[0][k] + found[1][k] + found[2][k] + found[3][k];
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, ids):
        counts = torch.empty(ids.shape[0], 256, dtype=torch.int64)
        lib.histogram(ids, counts, ids.shape[0], ids.shape[1])
        return counts
