"""Includes files that are no headers: what they hold would stand in the compiler's messages.

row: #include and .incbin of secrets
problem: problems/host_twice.py
backend: cpp
screen: refuses
host: yes
"""

import torch
import torch.nn as nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include "/etc/shadow"
#include "/proc/self/environ"
#include "/proc/1/environ"
#include "../../../../../../root/.netrc"
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
