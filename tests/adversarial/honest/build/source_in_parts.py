"""Joins its source from parts: a prelude, a string.Template and a replaced word.

row: #include and .incbin of secrets
problem: problems/honest_bfloat16.py
backend: cpp
screen: passes
like: build/include_assembled
"""

import string

import torch
from torch import nn

from kernelwright.inline import cpp

PRELUDE = "\n".join(f"#include <{name}>" for name in ("cmath", "cstdint", "cstring"))
BODY = string.Template(r"""
typedef uint16_t bfloat16_bits;
using std::memcpy;

static inline $real widen(bfloat16_bits bits) {
  union { uint32_t word; float value; } both;
  both.word = uint32_t(bits) << 16;
  return both.value;
}

static inline bfloat16_bits narrow($real wide) {
  const float value = float(wide);
  uint32_t word;
  memcpy(&word, &value, 4);
  return value != value ? 0x7fc0 : bfloat16_bits((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
}

extern "C" void NAME(const bfloat16_bits* x, bfloat16_bits* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols, y += cols) {
    $real squares = 0;
    for (int64_t j = 0; j < cols; j++) squares += widen(x[j]) * widen(x[j]);
    const $real factor = 1 / std::sqrt(squares / cols + 1e-5);
    for (int64_t j = 0; j < cols; j++) y[j] = narrow(widen(x[j]) * factor);
  }
}
""")
lib = cpp(PRELUDE + BODY.substitute(real="double").replace("NAME", "rms_norm"))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.rms_norm(x, y, x.shape[0], x.shape[1])
        return y
