"""One pass: every element is read once and written once, the factor is loop-invariant, the inner loop vectorises."""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void softsign_scale(const float* __restrict x, const float* __restrict scale, float* __restrict y,
                               int64_t rows, int64_t channels, int64_t positions) {
#pragma omp parallel for
  for (int64_t row = 0; row < rows; row++) {
    const float factor = scale[row % channels];
    const float* in = x + row * positions;
    float* out = y + row * positions;
    for (int64_t i = 0; i < positions; i++) out[i] = in[i] / (1.0f + std::fabs(in[i])) * factor;
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, positions = x.shape
        y = torch.empty_like(x)
        lib.softsign_scale(x, self.scale, y, batch * channels, channels, positions)
        return y
