"""A problem in bfloat16: widens to float32 by bits, computes there, and rounds to nearest even at the end.

row: lower precision inside
problem: problems/honest_bfloat16.py
backend: cpp
screen: passes
like: partial/half_precision_output, partial/accumulator_in_bfloat16
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <cstring>

static inline float widen(uint16_t bits) {
  const uint32_t shifted = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &shifted, sizeof value);
  return value;
}

static inline uint16_t narrow(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (value != value) return 0x7fc0;
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

extern "C" void rms_norm(const uint16_t* x, uint16_t* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols, y += cols) {
    double squares = 0;
    for (int64_t j = 0; j < cols; j++) squares += double(widen(x[j])) * widen(x[j]);
    const float factor = float(1.0 / std::sqrt(squares / cols + 1e-5));
    for (int64_t j = 0; j < cols; j++) y[j] = narrow(widen(x[j]) * factor);
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.rms_norm(x, y, x.shape[0], x.shape[1])
        return y
