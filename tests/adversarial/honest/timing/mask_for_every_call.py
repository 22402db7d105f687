"""Draws a mask of its own for every call, from a counter and a seed that torch's generator gives it.

row: telling checks from timing
problem: problems/dropout.py
backend: cpp
screen: passes
like: timing/one_mask_for_all_inputs
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void drop(const float* x, float* y, int64_t n, int64_t seed) {
  for (int64_t i = 0; i < n; i++) {
    uint64_t z = (uint64_t)seed * 0x9e3779b97f4a7c15ull + (uint64_t)i * 0xd1342543de82ef95ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    y[i] = (uint32_t)(z >> 32) >= 0x40000000u ? x[i] * (1.0f / 0.75f) : 0.0f;
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.drop(x, y, x.numel(), int(torch.randint(1 << 62, ())))
        return y
