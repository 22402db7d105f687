"""Sets attributes and methods, by setattr as well, on classes and modules of its own alone.

row: monkeypatched torch
problem: problems/bias_gelu.py
backend: cpp
screen: passes
like: harness/reference_operator_patched, timing/clock_patched
"""

import types

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void bias_gelu(const float* x, const float* bias, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) {
      const double t = x[i * cols + j] + bias[j];
      y[i * cols + j] = float(0.5 * t * (1 + std::tanh(0.7978845608028654 * (t + 0.044715 * t * t * t))));
    }
}
"""
lib = cpp(SOURCE)
functions = types.SimpleNamespace()
functions.allclose = functions.synchronize = None


class Clock:
    """Has the members of the time module, and is none."""

    time = perf_counter = 0


Clock.perf_counter = staticmethod(lambda: Clock.time)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        setattr(self, "bias", nn.Parameter(torch.zeros(cols)))  # noqa: B010
        self.clock = Clock()
        self.clock.time = 1

    def forward(self, x):
        y = torch.empty_like(x)
        lib.bias_gelu(x, self.bias, y, x.shape[0], x.shape[1])
        return y
