"""Switches gradients off for its kernel and restores the mode in a finally clause, as a context manager of its own.

row: swallowed exceptions falling back to torch
problem: problems/honest_layer_norm.py
backend: cpp
screen: passes
like: harness/fallback_after_an_error
"""

import contextlib

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void layer_norm(const float* x, const float* w, const float* b, float* y, int64_t rows, int64_t cols,
                           double epsilon) {
  for (int64_t i = 0; i < rows; i++, x += cols, y += cols) {
    double mean = 0, squares = 0;
    for (int64_t j = 0; j < cols; j++) mean += x[j];
    mean /= cols;
    for (int64_t j = 0; j < cols; j++) squares += (x[j] - mean) * (x[j] - mean);
    const double factor = 1 / std::sqrt(squares / cols + epsilon);
    for (int64_t j = 0; j < cols; j++) y[j] = float((x[j] - mean) * factor * w[j] + b[j]);
  }
}
"""
lib = cpp(SOURCE)


@contextlib.contextmanager
def without_gradients():
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        yield
    finally:
        torch._C._set_grad_enabled(before)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        with without_gradients():
            y = torch.empty_like(x)
            lib.layer_norm(x, self.norm.weight, self.norm.bias, y, x.shape[0], x.shape[1], self.norm.eps)
        return y
