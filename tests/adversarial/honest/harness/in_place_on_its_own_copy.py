"""Copies its input first and then works in place on the copy.

row: in-place change of inputs
problem: problems/row_softmax.py
backend: cpp
screen: passes
like: harness/inputs_overwritten
"""

from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void softmax_(float* x, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols) {
    float largest = x[0];
    for (int64_t j = 1; j < cols; j++) largest = std::fmax(largest, x[j]);
    double sum = 0;
    for (int64_t j = 0; j < cols; j++) sum += x[j] = std::exp(x[j] - largest);
    for (int64_t j = 0; j < cols; j++) x[j] = float(x[j] / sum);
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = x.clone()
        lib.softmax_(y, y.shape[0], y.shape[1])
        return y
