"""Makes its forward function out of text with exec, specialised for the rank of the input.

row: monkeypatched torch
problem: problems/row_sum.py
backend: cpp
screen: passes
like: harness/evaluator_rewritten
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void row_sum(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) {
    float halves[2][8] = {};
    for (int64_t j = 0; j < cols; j++) halves[j / 8 % 2][j % 8] += x[i * cols + j];
    float sum = 0;
    for (int k = 0; k < 8; k++) sum += halves[0][k] + halves[1][k];
    y[i] = sum;
  }
}
"""
lib = cpp(SOURCE)


def launcher(rank):
    """A function that launches the kernel on tensors of ``rank`` dimensions."""
    names = ", ".join(f"d{i}" for i in range(rank))
    rows = " * ".join(f"d{i}" for i in range(rank - 1)) or "1"
    text = f"def launch(x, y):\n    {names} = x.shape\n    lib.row_sum(x, y, {rows}, d{rank - 1})\n    return y\n"
    namespace = {"lib": lib}
    exec(text, namespace)
    return namespace["launch"]


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.launch = launcher(rank=2)

    def forward(self, x):
        return self.launch(x, torch.empty(x.shape[:-1]))
