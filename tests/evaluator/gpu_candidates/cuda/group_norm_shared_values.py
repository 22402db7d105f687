"""Group normalisation that keeps a group's values in dynamic shared memory.

problem: group_norm
features: launcher, warp, dynamic
"""

from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <ATen/cuda/CUDAContext.h>
#include <torch/extension.h>

__inline__ __device__ float warp_sum(float v) {
  for (int mask = 16; mask > 0; mask >>= 1) v += __shfl_xor_sync(0xffffffff, v, mask, 32);
  return v;
}

__inline__ __device__ float block_sum(float v, float* partial) {
  const int lane = threadIdx.x & 0x1f, warp = threadIdx.x >> 5;
  v = warp_sum(v);
  if (lane == 0) partial[warp] = v;
  __syncthreads();
  v = threadIdx.x < (blockDim.x >> 5) ? partial[lane] : 0.f;
  if (warp == 0) v = warp_sum(v);
  if (threadIdx.x == 0) partial[0] = v;
  __syncthreads();
  v = partial[0];
  __syncthreads();
  return v;
}

__global__ void group_norm_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                                  const float* __restrict__ bias, float* __restrict__ y, int groups, int width,
                                  int pixels, float eps) {
  extern __shared__ float memory[];
  float* partial = memory;
  float* values = memory + 32;
  const int count = width * pixels, group = blockIdx.x % groups;
  const size_t base = (size_t)blockIdx.x * count;
  float sum = 0.f;
  for (int i = threadIdx.x; i < count; i += blockDim.x) sum += values[i] = x[base + i];
  const float mean = block_sum(sum, partial) / count;
  sum = 0.f;
  for (int i = threadIdx.x; i < count; i += blockDim.x) sum += (values[i] - mean) * (values[i] - mean);
  const float scale = rsqrtf(block_sum(sum, partial) / count + eps);
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int channel = group * width + i / pixels;
    y[base + i] = (values[i] - mean) * scale * weight[channel] + bias[channel];
  }
}

torch::Tensor group_norm(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, int64_t groups, double eps) {
  auto y = torch::empty_like(x);
  const int width = x.size(1) / groups, pixels = x.size(2) * x.size(3);
  const size_t bytes = (32 + width * pixels) * sizeof(float);
  cudaFuncSetAttribute(group_norm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
  group_norm_kernel<<<x.size(0) * groups, 128, bytes, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), y.data_ptr<float>(), groups, width, pixels,
      eps);
  return y;
}
"""
CPP = """
torch::Tensor group_norm(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, int64_t groups, double eps);
"""
module = load_inline(
    name="group_norm_shared_values",
    cpp_sources=CPP,
    cuda_sources=CUDA,
    functions=["group_norm"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        return module.group_norm(x, self.norm.weight, self.norm.bias, self.norm.num_groups, self.norm.eps)
