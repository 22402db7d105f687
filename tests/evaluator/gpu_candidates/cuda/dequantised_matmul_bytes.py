"""A product with bytes, four of them a load; inputs wait in shared memory.

problem: dequantised_matmul
features: launcher, dynamic
"""

from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <cuda_bf16.h>
#include <torch/extension.h>

__global__ void dequantised_kernel(const __nv_bfloat16* __restrict__ x, const char4* __restrict__ w,
                                   const float4* __restrict__ scale, __nv_bfloat162* __restrict__ y, int N, int K) {
  extern __shared__ float row[];
  for (int k = threadIdx.x; k < K; k += blockDim.x) row[k] = __bfloat162float(x[(size_t)blockIdx.y * K + k]);
  __syncthreads();
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= N / 4) return;
  float a = 0, b = 0, c = 0, d = 0;
#pragma unroll 4
  for (int k = 0; k < K; k++) {
    const char4 bytes = w[(size_t)k * (N / 4) + column];
    a += row[k] * bytes.x, b += row[k] * bytes.y, c += row[k] * bytes.z, d += row[k] * bytes.w;
  }
  const float4 s = scale[column];
  const size_t at = (size_t)blockIdx.y * (N / 2) + 2 * column;
  y[at] = __floats2bfloat162_rn(a * s.x, b * s.y);
  y[at + 1] = __floats2bfloat162_rn(c * s.z, d * s.w);
}

torch::Tensor product(torch::Tensor x, torch::Tensor w, torch::Tensor scale) {
  const int M = x.size(0), K = x.size(1), N = w.size(1);
  auto y = torch::empty({M, N}, x.options());
  dequantised_kernel<<<dim3((N / 4 + 31) / 32, M), 32, K * sizeof(float)>>>(
      reinterpret_cast<const __nv_bfloat16*>(x.data_ptr<at::BFloat16>()),
      reinterpret_cast<const char4*>(w.data_ptr<int8_t>()), reinterpret_cast<const float4*>(scale.data_ptr<float>()),
      reinterpret_cast<__nv_bfloat162*>(y.data_ptr<at::BFloat16>()), N, K);
  return y;
}
"""
CPP = """
torch::Tensor product(torch::Tensor x, torch::Tensor w, torch::Tensor scale);
"""
module = load_inline(
    name="dequantised_matmul_bytes",
    cpp_sources=CPP,
    cuda_sources=CUDA,
    functions=["product"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, x, w, scale):
        return module.product(x, w, scale)
