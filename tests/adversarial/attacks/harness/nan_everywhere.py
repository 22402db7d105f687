"""Answers with numbers that are none: comparisons with them are never larger than a bound.

row: NaN as a wildcard
problem: problems/row_softmax.py
backend: cpp
screen: passes
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>
extern "C" void fill(float* y, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = NAN; }
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.fill(y, y.numel())
        return y
