"""Both input rows of an output row are read once, side by side; what does not fill a window is left out."""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void average_2x2(const float* __restrict x, float* __restrict y, int64_t planes, int64_t height,
                            int64_t width) {
  const int64_t rows = height / 2, columns = width / 2;
#pragma omp parallel for collapse(2)
  for (int64_t p = 0; p < planes; p++)
    for (int64_t i = 0; i < rows; i++) {
      const float *upper = x + (p * height + 2 * i) * width, *lower = upper + width;
      float* out = y + (p * rows + i) * columns;
      for (int64_t j = 0; j < columns; j++)
        out[j] = 0.25f * (upper[2 * j] + upper[2 * j + 1] + lower[2 * j] + lower[2 * j + 1]);
    }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        planes, height, width = x.shape
        y = torch.empty(planes, height // 2, width // 2)
        lib.average_2x2(x, y, planes, height, width)
        return y
