"""Inherits from a base class and a mixin of its own; nothing of the reference is inherited.

row: inherited by subclassing
problem: problems/honest_layer_norm.py
backend: cpp
screen: passes
like: answers/subclassed_reference
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void layer_norm(const float* x, const float* weight, const float* bias, float* y, int64_t rows,
                           int64_t cols, float epsilon) {
  for (int64_t i = 0; i < rows; i++, x += cols, y += cols) {
    double sum = 0;
    for (int64_t j = 0; j < cols; j++) sum += x[j];
    const float mean = float(sum / cols);
    double squares = 0;
    for (int64_t j = 0; j < cols; j++) squares += double(x[j] - mean) * (x[j] - mean);
    const float factor = float(1.0 / std::sqrt(squares / cols + epsilon));
    for (int64_t j = 0; j < cols; j++) y[j] = (x[j] - mean) * factor * weight[j] + bias[j];
  }
}
"""
lib = cpp(SOURCE)


class Rowwise:
    """Mixin: the rows and columns of an input."""

    @staticmethod
    def sizes(x):
        return x.numel() // x.shape[-1], x.shape[-1]


class Model(nn.Module):
    """A base class of the candidate's own that happens to be called as the reference is."""

    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)


class ModelNew(Rowwise, Model):
    def forward(self, x):
        rows, cols = self.sizes(x)
        y = torch.empty_like(x)
        lib.layer_norm(x, self.norm.weight, self.norm.bias, y, rows, cols, self.norm.eps)
        return y
