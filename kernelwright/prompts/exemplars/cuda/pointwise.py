"""One block row a (batch, channel) row: neighbouring threads touch neighbouring floats, the factor is read once."""

import torch
from torch import nn

from kernelwright.inline import cuda

KNOBS = {"BLOCK": [128, 256, 512]}
BLOCK = 256

SOURCE = r"""
extern "C" __global__ void softsign_scale(const float* __restrict__ x, const float* __restrict__ scale,
                                          float* __restrict__ y, int channels, int positions) {
  const long long row = blockIdx.x;
  const float factor = scale[row % channels];
  for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < positions; i += gridDim.y * blockDim.x) {
    const float value = x[row * positions + i];
    y[row * positions + i] = value / (1.0f + fabsf(value)) * factor;
  }
}
"""
kernel = cuda(SOURCE, "softsign_scale")


class ModelNew(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, positions = x.shape
        y = torch.empty_like(x)
        grid = batch * channels, -(-positions // (4 * BLOCK))  # about four elements a thread
        kernel[grid, BLOCK](x, self.scale, y, channels, positions)
        return y
