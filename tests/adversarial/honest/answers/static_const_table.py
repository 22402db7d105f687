"""A static const table of powers of two in C++, filled by the compiler and indexed by the inputs' exponents.

row: precomputed answers for known seeds
problem: problems/row_softmax.py
backend: cpp
screen: passes
like: partial/bias_table, partial/exponential_by_bits
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

struct Powers {
  float value[160];
  constexpr Powers() : value() {
    double power = 1;
    for (int i = 0; i < 160; i++, power /= 2) value[i] = float(power);
  }
};
static constexpr Powers POWERS;
static const double TAYLOR[] = {1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040};

static inline float exponential(float x) {  // x <= 0
  if (!(x > -103.0f)) return x == x ? 0.0f : x;
  const int whole = int(-x * 1.44269504f + 0.5f);
  const double rest = double(x) + whole * 0.693147180559945309;
  double sum = 0;
  for (int i = 7; i >= 0; i--) sum = sum * rest + TAYLOR[i];
  return float(sum * POWERS.value[whole]);
}

extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols, y += cols) {
    float largest = x[0];
    for (int64_t j = 1; j < cols; j++) largest = x[j] > largest ? x[j] : largest;
    double sum = 0;
    for (int64_t j = 0; j < cols; j++) sum += y[j] = exponential(x[j] - largest);
    for (int64_t j = 0; j < cols; j++) y[j] = float(y[j] / sum);
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.softmax(x, y, *x.shape)
        return y
