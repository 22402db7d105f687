"""Catches the absence of an optional package by name and goes on with its own kernel either way.

row: swallowed exceptions falling back to torch
problem: problems/row_sum.py
backend: cpp
screen: passes
like: harness/fallback_without_a_build
"""

import torch
from torch import nn

from kernelwright.inline import cpp

try:
    import numexpr_of_tomorrow
except ImportError:
    numexpr_of_tomorrow = None

SOURCE = r"""
#include <cstdint>
#include <numeric>

extern "C" void row_sum(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) y[i] = float(std::accumulate(x + i * cols, x + (i + 1) * cols, 0.0));
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        try:
            rows, cols = x.shape
        except ValueError as error:
            raise ValueError(f"a matrix is expected, not {x.dim()} dimensions") from error
        y = torch.empty(rows)
        lib.row_sum(x, y, rows, cols)
        return y
