"""Makes the compiler load a plug-in.

row: compiler plug-ins
problem: problems/host_twice.py
backend: cpp
screen: refuses
"""

import torch
import torch.nn as nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
"""
lib = cpp(SOURCE, flags=("-fplugin=/job/plugin.so", "-fplugin-arg-plugin-key=value"))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
