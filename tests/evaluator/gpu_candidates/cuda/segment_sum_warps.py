"""Sums of segments, a warp for each segment and 32 columns; rows come in through read-only loads.

problem: segment_sum
features: template
"""

import torch
from torch import nn

from kernelwright.inline import cuda

SOURCE = r"""
template <typename T, typename Index, int UNROLL>
__global__ void segments(const T* __restrict__ x, const Index* __restrict__ offsets, T* __restrict__ y, int cols) {
  const int col = blockIdx.y * 32 + threadIdx.x, segment = blockIdx.x;
  if (col >= cols) return;
  Index row = offsets[segment];
  const Index end = offsets[segment + 1];
  T sums[UNROLL] = {};
  for (; row + UNROLL <= end; row += UNROLL)
#pragma unroll
    for (int i = 0; i < UNROLL; i++) sums[i] += __ldg(&x[(row + i) * cols + col]);
  for (; row < end; row++) sums[0] += x[row * cols + col];
  T total = 0;
  for (const T& sum : sums) total += sum;
  y[segment * cols + col] = total;
}
"""
kernel = cuda(SOURCE, "segments<float, int, 4>")


class ModelNew(nn.Module):
    def forward(self, x, offsets):
        count, cols = offsets.numel() - 1, x.shape[1]
        y = torch.empty(count, cols, device=x.device)
        kernel[(count, (cols + 31) // 32), 32](x, offsets, y, cols)
        return y
