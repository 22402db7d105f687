"""Terms in float, one partial sum a row in float, rows added up in double: as exact as needed, and still vectorised."""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void bce_mean(const float* __restrict x, const float* __restrict target, float* __restrict y, int64_t rows,
                         int64_t columns) {
  double total = 0;
#pragma omp parallel for reduction(+ : total)
  for (int64_t row = 0; row < rows; row++) {
    const float *in = x + row * columns, *wanted = target + row * columns;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < columns; i++) {
      const float v = in[i];
      sum += (v > 0 ? v : 0) - v * wanted[i] + std::log(1.0f + std::exp(-std::fabs(v)));
    }
    total += sum;
  }
  y[0] = static_cast<float>(total / (static_cast<double>(rows) * columns));
}
"""
lib = cpp(SOURCE, flags=["-ffast-math"])


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y = torch.empty(())
        lib.bce_mean(x, target, y, *x.shape)
        return y
