"""Mean, then squared deviations from it, then the result: three loops over a row that stays in the L1 cache.

E[x^2] - E[x]^2 in one loop would lose all digits where the mean is large.
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void instance_norm(const float* __restrict x, float* __restrict y, int64_t rows, int64_t columns,
                              float eps) {
#pragma omp parallel for
  for (int64_t row = 0; row < rows; row++) {
    const float* in = x + row * columns;
    float* out = y + row * columns;
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < columns; i++) sum += in[i];
    const float mean = sum / columns;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < columns; i++) squares += (in[i] - mean) * (in[i] - mean);
    const float factor = 1.0f / std::sqrt(squares / columns + eps);
    for (int64_t i = 0; i < columns; i++) out[i] = (in[i] - mean) * factor;
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, positions = x.shape
        y = torch.empty_like(x)
        lib.instance_norm(x, y, batch * channels, positions, 1e-5)
        return y
