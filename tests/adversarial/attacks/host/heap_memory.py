"""Takes memory from the heap until there is none.

row: memory by heap
problem: problems/host_twice.py
backend: cpp
screen: passes
host: yes
"""

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
        held = []
        while True:
            held.append(b"x" * (64 << 20))
