"""Inline assembly without instructions of its own (a compiler barrier), a pause, and a conditional move.

row: #include and .incbin of secrets
problem: problems/honest_argmax.py
backend: cpp
screen: passes
like: build/incbin_secret, host/fork_by_instruction
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

static inline int64_t choose(bool second, int64_t a, int64_t b) {
#if defined(__x86_64__)
  __asm__("test %b1, %b1\n\tcmovne %2, %0" : "+r"(a) : "q"(second), "r"(b) : "cc");
  return a;
#else
  return second ? b : a;
#endif
}

extern "C" void argmax(const float* x, int64_t* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols) {
    int64_t at = 0;
    for (int64_t j = 1; j < cols; j++) at = choose(x[j] > x[at], at, j);
    y[i] = at;
    asm volatile("" ::: "memory");
  }
#if defined(__x86_64__)
  asm volatile("pause");
#endif
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], dtype=torch.int64)
        lib.argmax(x, y, x.shape[0], x.shape[1])
        return y
