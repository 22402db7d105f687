"""Hands knobs over as macros; one of them is a truth value, one a string of C++.

row: linker response files
problem: problems/row_softmax.py
backend: cpp
screen: passes
like: build/assembled_flags
"""

import torch
from torch import nn

from kernelwright.inline import cpp

KNOBS = {"LANES": [16, 8, 32], "MULTIPLY": [True, False]}
LANES = 16
MULTIPLY = True
SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols, y += cols) {
    SCALAR largest = x[0], sums[LANES] = {}, sum = 0;
    for (int64_t j = 1; j < cols; j++) largest = x[j] > largest ? x[j] : largest;
    for (int64_t j = 0; j < cols; j++) sums[j % LANES] += y[j] = std::exp(x[j] - largest);
    for (SCALAR part : sums) sum += part;
#if MULTIPLY
    const SCALAR factor = 1 / sum;
    for (int64_t j = 0; j < cols; j++) y[j] *= factor;
#else
    for (int64_t j = 0; j < cols; j++) y[j] /= sum;
#endif
  }
}
"""
lib = cpp(SOURCE, defines={"LANES": LANES, "MULTIPLY": MULTIPLY, "SCALAR": "float"}, flags=["-funroll-loops"])


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.softmax(x, y, x.shape[0], x.shape[1])
        return y
