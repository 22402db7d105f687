"""Makes the compiler say a hundred megabytes.

row: endless output: of the compiler
problem: problems/host_twice.py
backend: cpp
screen: passes
"""

import torch
import torch.nn as nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
""")


NAME = "x" * 1_000_000
CALLS = "".join(f"int f{i}() {{ return NAME; }}\n" for i in range(100))
flood = cpp(f"#define NAME {NAME}\n{CALLS}")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
