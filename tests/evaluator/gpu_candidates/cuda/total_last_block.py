"""The sum of all elements: the block that ends last adds the others' parts up.

problem: total
features: launcher, warp
"""

from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>

__device__ unsigned int ended = 0;

__device__ float block_sum(float value) {
  __shared__ float partial[4];
  for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_down_sync(0xffffffff, value, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  return partial[0] + partial[1] + partial[2] + partial[3];
}

__global__ void total_kernel(const float* x, volatile float* parts, float* y, int n) {
  __shared__ bool last;
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = sum;
    __threadfence();
    last = atomicInc(&ended, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  sum = 0;
  for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x) sum += parts[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    *y = sum;
    ended = 0;
  }
}

torch::Tensor total(torch::Tensor x) {
  const int blocks = std::min<int64_t>((x.numel() + 127) / 128, 128);
  auto parts = torch::empty({blocks}, x.options()), y = torch::empty({}, x.options());
  total_kernel<<<blocks, 128>>>(x.data_ptr<float>(), parts.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}
"""
CPP = """
torch::Tensor total(torch::Tensor x);
"""
module = load_inline(
    name="total_last_block",
    cpp_sources=CPP,
    cuda_sources=CUDA,
    functions=["total"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return module.total(x)
