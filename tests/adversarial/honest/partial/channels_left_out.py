"""Leaves out whole channels, as the reference does: few decisions move all of an output's elements at once.

row: random numbers of its own in a distribution that is the reference's
problem: problems/channel_dropout.py
backend: cpp
screen: passes
like: partial/largest_left_out_of_random, timing/one_mask_turned_on
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void drop_channels(const float* x, float* y, int64_t channels, int64_t length, int64_t seed) {
  for (int64_t c = 0; c < channels; c++) {
    uint64_t z = (uint64_t)seed * 0x9e3779b97f4a7c15ull + (uint64_t)(c + 1) * 0xd1342543de82ef95ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    float scale = (uint32_t)(z >> 32) >= 0x40000000u ? 1.0f / 0.75f : 0.0f;
    for (int64_t j = 0; j < length; j++) y[c * length + j] = x[c * length + j] * scale;
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.drop_channels(x, y, x.shape[0] * x.shape[1], x.shape[2], int(torch.randint(1 << 62, ())))
        return y
