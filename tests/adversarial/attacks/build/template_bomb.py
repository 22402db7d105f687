"""Doubles a list of template parameters until the builder has no memory.

row: template bombs
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


bomb = cpp(r"""
template <int D, class... T> struct Twice : Twice<D - 1, T..., T...> {};
template <class... T> struct Twice<0, T...> { static constexpr int value = sizeof...(T); };
extern "C" int size() { return Twice<40, int>::value; }
""")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
