"""Asks by pragmas whether a file of the host is newer than the source, and for one to be loaded as a header.

row: #include and .incbin of secrets: by pragmas
problem: problems/host_twice.py
backend: cpp
screen: refuses
host: yes
"""

import torch
import torch.nn as nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
#pragma GCC dependency "/etc/hostname" was edited
#pragma GCC pch_preprocess "/etc/shadow"
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
