"""RMS normalisation in pairs of bfloat16.

problem: rms_norm
features: launcher, warp
"""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <cuda_bf16.h>
#include <torch/extension.h>

__global__ void rms_norm_kernel(const __nv_bfloat162* x, const __nv_bfloat162* weight, __nv_bfloat162* y, int pairs,
                                float eps) {
  __shared__ float sums[32];
  x += (size_t)blockIdx.x * pairs;
  y += (size_t)blockIdx.x * pairs;
  float sum = 0.f;
  for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
    const float2 v = __bfloat1622float2(x[i]);
    sum = fmaf(v.x, v.x, fmaf(v.y, v.y, sum));
  }
  for (int offset = 16; offset; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0.f;
  for (unsigned w = 0; w < blockDim.x / 32; w++) sum += sums[w];
  const float scale = rsqrtf(sum / (2 * pairs) + eps);
  for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
    const float2 v = __bfloat1622float2(x[i]), w = __bfloat1622float2(weight[i]);
    y[i] = __floats2bfloat162_rn(v.x * scale * w.x, v.y * scale * w.y);
  }
}

torch::Tensor rms_norm(torch::Tensor x, torch::Tensor weight, double eps) {
  auto y = torch::empty_like(x);
  rms_norm_kernel<<<x.size(0), 64>>>(reinterpret_cast<const __nv_bfloat162*>(x.data_ptr<at::BFloat16>()),
                                     reinterpret_cast<const __nv_bfloat162*>(weight.data_ptr<at::BFloat16>()),
                                     reinterpret_cast<__nv_bfloat162*>(y.data_ptr<at::BFloat16>()), x.size(1) / 2, eps);
  return y;
}
"""
CPP = """
torch::Tensor rms_norm(torch::Tensor x, torch::Tensor weight, double eps);
"""
module = load_inline(
    name="rms_norm_bf16_pairs",
    cpp_sources=CPP,
    cuda_sources=CUDA,
    functions=["rms_norm"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features, dtype=torch.bfloat16))

    def forward(self, x):
        return module.rms_norm(x, self.weight, 1e-5)
