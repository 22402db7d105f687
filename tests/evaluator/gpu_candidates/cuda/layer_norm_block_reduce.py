"""Layer normalisation with a block reduction that is a template, and vectors of four.

problem: layer_norm
features: launcher, template, warp
"""

from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <ATen/cuda/CUDAContext.h>
#include <torch/extension.h>

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

template <int THREADS, typename Op>
__device__ float block_reduce(float value, Op op) {
  __shared__ float partial[THREADS / 32];
  __shared__ float result;
  for (int offset = 16; offset > 0; offset /= 2) value = op(value, __shfl_down_sync(0xffffffff, value, offset));
  if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = value;
  __syncthreads();
  if (threadIdx.x < 32) {
    value = threadIdx.x < THREADS / 32 ? partial[threadIdx.x] : 0.f;
    for (int offset = THREADS / 64; offset > 0; offset /= 2)
      value = op(value, __shfl_down_sync(0xffffffff, value, offset));
    if (threadIdx.x == 0) result = value;
  }
  __syncthreads();
  const float found = result;
  __syncthreads();
  return found;
}

template <int THREADS>
__global__ void layer_norm_kernel(const float4* __restrict__ x, const float4* __restrict__ weight,
                                  const float4* __restrict__ bias, float4* __restrict__ y, int vectors, float eps) {
  const float4* from = x + (size_t)blockIdx.x * vectors;
  float sum = 0;
  for (int i = threadIdx.x; i < vectors; i += THREADS) {
    const float4 v = __ldg(from + i);
    sum += v.x + v.y + v.z + v.w;
  }
  const float mean = block_reduce<THREADS>(sum, Sum()) / (4 * vectors);
  float square = 0;
  for (int i = threadIdx.x; i < vectors; i += THREADS) {
    const float4 v = from[i];
    const float a = v.x - mean, b = v.y - mean, c = v.z - mean, d = v.w - mean;
    square += a * a + b * b + c * c + d * d;
  }
  const float scale = rsqrtf(block_reduce<THREADS>(square, Sum()) / (4 * vectors) + eps);
  for (int i = threadIdx.x; i < vectors; i += THREADS) {
    const float4 v = from[i], w = weight[i], b = bias[i];
    y[(size_t)blockIdx.x * vectors + i] =
        make_float4((v.x - mean) * scale * w.x + b.x, (v.y - mean) * scale * w.y + b.y,
                    (v.z - mean) * scale * w.z + b.z, (v.w - mean) * scale * w.w + b.w);
  }
}

torch::Tensor layer_norm(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double eps) {
  TORCH_CHECK(x.size(-1) % 4 == 0, "rows have to consist of vectors of four");
  auto y = torch::empty_like(x);
  auto pointer = [](const torch::Tensor& t) { return reinterpret_cast<const float4*>(t.data_ptr<float>()); };
  layer_norm_kernel<128><<<x.size(0), 128, 0, at::cuda::getCurrentCUDAStream().stream()>>>(
      pointer(x), pointer(weight), pointer(bias), reinterpret_cast<float4*>(y.data_ptr<float>()), x.size(1) / 4, eps);
  return y;
}
"""
CPP = """
torch::Tensor layer_norm(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double eps);
"""
module = load_inline(
    name="layer_norm_block_reduce",
    cpp_sources=CPP,
    cuda_sources=CUDA,
    functions=["layer_norm"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return module.layer_norm(x, self.norm.weight, self.norm.bias, self.norm.eps)
