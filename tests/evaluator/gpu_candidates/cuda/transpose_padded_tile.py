"""The transpose of a matrix by tiles in shared memory, with a column more against bank conflicts.

problem: transpose
features: template
"""

import torch
from torch import nn

from kernelwright.inline import cuda

SOURCE = r"""
template <int TILE, int ROWS>
__global__ void transpose(const float* __restrict__ x, float* __restrict__ y, int rows, int cols) {
  __shared__ float tile[TILE][TILE + 1];
  int col = blockIdx.x * TILE + threadIdx.x;
  int row = blockIdx.y * TILE + threadIdx.y;
#pragma unroll
  for (int j = 0; j < TILE; j += ROWS)
    if (row + j < rows && col < cols) tile[threadIdx.y + j][threadIdx.x] = x[(row + j) * cols + col];
  __syncthreads();
  col = blockIdx.y * TILE + threadIdx.x;
  row = blockIdx.x * TILE + threadIdx.y;
#pragma unroll
  for (int j = 0; j < TILE; j += ROWS)
    if (row + j < cols && col < rows) y[(row + j) * rows + col] = 2 * tile[threadIdx.x][threadIdx.y + j];
}
"""
kernel = cuda(SOURCE, "transpose<32, 8>")


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        y = torch.empty(cols, rows, device=x.device)
        kernel[((cols + 31) // 32, (rows + 31) // 32), (32, 8)](x, y, rows, cols)
        return y
