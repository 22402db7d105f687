"""Inherits forward from a copy of the reference; its own kernel touches one element.

row: inherited by subclassing; torch operators behind a decoy kernel
problem: problems/row_softmax.py
backend: cpp
screen: passes
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>
extern "C" void touch(float* y, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] += 0.0f; }
"""
lib = cpp(SOURCE)


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


class ModelNew(Model):
    def forward(self, x):
        y = super().forward(x)
        lib.touch(y, 1)
        return y
