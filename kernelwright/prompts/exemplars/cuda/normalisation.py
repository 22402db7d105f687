"""One block a row. Mean first, squared deviations second: E[x^2] - E[x]^2 would lose all digits where the mean is
large. The row is small enough to come out of the caches the second and third time.
"""

import torch
from torch import nn

from kernelwright.inline import cuda

KNOBS = {"BLOCK": [128, 256, 512]}
BLOCK = 256

SOURCE = r"""
__device__ float block_sum(float value, float* partial) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < BLOCK / 32; warp++) sum += partial[warp];
  __syncthreads();  // partial is written again by the next sum
  return sum;
}

extern "C" __global__ void instance_norm(const float* __restrict__ x, float* __restrict__ y, int columns, float eps) {
  __shared__ float partial[BLOCK / 32];
  const float* in = x + (long long)blockIdx.x * columns;
  float* out = y + (long long)blockIdx.x * columns;
  float sum = 0, squares = 0;
  for (int i = threadIdx.x; i < columns; i += BLOCK) sum += in[i];
  const float mean = block_sum(sum, partial) / columns;
  for (int i = threadIdx.x; i < columns; i += BLOCK) squares += (in[i] - mean) * (in[i] - mean);
  const float factor = rsqrtf(block_sum(squares, partial) / columns + eps);
  for (int i = threadIdx.x; i < columns; i += BLOCK) out[i] = (in[i] - mean) * factor;
}
"""
kernel = cuda(SOURCE, "instance_norm", defines={"BLOCK": BLOCK})


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, positions = x.shape
        y = torch.empty_like(x)
        kernel[batch * channels, BLOCK](x, y, positions, 1e-5)
        return y
