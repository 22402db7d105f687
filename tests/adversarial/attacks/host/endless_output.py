"""Prints for ever, on both streams.

row: endless output
problem: problems/host_twice.py
backend: cpp
screen: passes
host: yes
"""

import os

import torch.nn as nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        while True:
            os.write(1, b"A" * 65536)
            os.write(2, b"B" * 65536)
