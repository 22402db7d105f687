"""Tells the compiler that its lines come from another file, so that messages quote that file.

row: #include and .incbin of secrets: quoted in messages
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
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
#line 1 "/proc/self/environ"
wrong here;
#line 1 "/etc/shadow"
wrong here;
#line 1 "/root/.netrc"
wrong here;
""")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
