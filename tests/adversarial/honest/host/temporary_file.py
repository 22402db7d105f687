"""Writes the plan that it made to a temporary file and reads it back, as caches of tuning results do.

row: filling every mount
problem: problems/row_sum.py
backend: cpp
screen: passes
like: host/fill_mounts
"""

import json
import tempfile

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void row_sum(const float* x, float* y, int64_t rows, int64_t cols, int64_t lanes) {
  for (int64_t i = 0; i < rows; i++) {
    float sums[64] = {};
    for (int64_t j = 0; j < cols; j++) sums[j % lanes] += x[i * cols + j];
    for (int64_t k = 1; k < lanes; k++) sums[0] += sums[k];
    y[i] = sums[0];
  }
}
"""
lib = cpp(SOURCE)


def tuned():
    """The plan, by way of a file."""
    with tempfile.TemporaryFile("w+") as file:
        json.dump({"lanes": 16}, file)
        file.seek(0)
        return json.load(file)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.lanes = tuned()["lanes"]

    def forward(self, x):
        y = torch.empty(x.shape[0])
        lib.row_sum(x, y, x.shape[0], x.shape[1], self.lanes)
        return y
