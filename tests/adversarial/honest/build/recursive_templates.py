"""A tree of sums unrolled by recursive templates, a lambda and if constexpr: sixteen levels at most.

row: template bombs
problem: problems/row_sum.py
backend: cpp
screen: passes
like: build/template_bomb
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>
#include <type_traits>

template <int WIDTH, typename T>
static inline T tree(const T* x) {
  static_assert(std::is_floating_point<T>::value && WIDTH <= 64, "a small tree of floats");
  if constexpr (WIDTH == 1) {
    return *x;
  } else {
    return tree<WIDTH / 2>(x) + tree<WIDTH - WIDTH / 2>(x + WIDTH / 2);
  }
}

extern "C" void row_sum(const float* x, float* y, int64_t rows, int64_t cols) {
  const auto total = [cols](const float* row) -> float {
    double sum = 0;
    int64_t j = 0;
    for (; j + 64 <= cols; j += 64) sum += tree<64>(row + j);
    for (; j < cols; j++) sum += row[j];
    return float(sum);
  };
  for (int64_t i = 0; i < rows; i++) y[i] = total(x + i * cols);
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0])
        lib.row_sum(x, y, x.shape[0], x.shape[1])
        return y
