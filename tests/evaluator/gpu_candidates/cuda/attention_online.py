"""Causal attention in bfloat16: a warp a query, keys and values staged in dynamic shared memory.

problem: attention
features: launcher, template, dynamic, warp
"""

from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <ATen/cuda/CUDAContext.h>
#include <cuda_bf16.h>
#include <torch/extension.h>

template <int WARPS, int KEYS>
__global__ void attention_kernel(const __nv_bfloat16* __restrict__ q, const __nv_bfloat16* __restrict__ k,
                                 const __nv_bfloat16* __restrict__ v, __nv_bfloat16* __restrict__ o, int tokens,
                                 int width, float scale) {
  extern __shared__ float staged[];
  float* keys = staged;
  float* values = keys + KEYS * (width + 1);
  float* query = values + KEYS * width + threadIdx.y * width;
  const int lane = threadIdx.x, row = blockIdx.x * WARPS + threadIdx.y;
  const size_t base = (size_t)blockIdx.y * tokens * width;
  const int last = min(tokens, (int)(blockIdx.x + 1) * WARPS);
  if (row < tokens)
    for (int w = lane; w < width; w += 32) query[w] = __bfloat162float(q[base + (size_t)row * width + w]) * scale;
  float largest = -INFINITY, total = 0.f, acc[4] = {0.f, 0.f, 0.f, 0.f};
  for (int start = 0; start < last; start += KEYS) {
    __syncthreads();
    for (int i = threadIdx.y * 32 + lane; i < KEYS * width; i += WARPS * 32) {
      const int key = i / width, w = i % width;
      const bool inside = start + key < tokens;
      keys[key * (width + 1) + w] = inside ? __bfloat162float(k[base + (size_t)(start + key) * width + w]) : 0.f;
      values[i] = inside ? __bfloat162float(v[base + (size_t)(start + key) * width + w]) : 0.f;
    }
    __syncthreads();
    if (row >= tokens) continue;
    float score = -INFINITY;
    if (lane < KEYS && start + lane <= row) {
      score = 0.f;
      for (int w = 0; w < width; w++) score += query[w] * keys[lane * (width + 1) + w];
    }
    float higher = score;
    for (int offset = 16; offset > 0; offset /= 2) higher = fmaxf(higher, __shfl_xor_sync(0xffffffff, higher, offset));
    higher = fmaxf(higher, largest);
    const float p = higher == -INFINITY ? 0.f : __expf(score - higher);
    const float correction = higher == -INFINITY ? 1.f : __expf(largest - higher);
    float sum = p;
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffff, sum, offset);
    total = total * correction + sum;
    for (int i = 0; i < 4; i++) acc[i] *= correction;
    for (int key = 0; key < KEYS; key++) {
      const float weight = __shfl_sync(0xffffffff, p, key);
      for (int i = 0; i * 32 + lane < width; i++) acc[i] += weight * values[key * width + i * 32 + lane];
    }
    largest = higher;
  }
  if (row < tokens)
    for (int i = 0; i * 32 + lane < width; i++)
      o[base + (size_t)row * width + i * 32 + lane] = __float2bfloat16(acc[i] / total);
}

torch::Tensor attention(torch::Tensor q, torch::Tensor k, torch::Tensor v) {
  const int heads = q.size(0) * q.size(1), tokens = q.size(2), width = q.size(3);
  TORCH_CHECK(width <= 128, "heads of more than 128 are not supported");
  auto o = torch::empty_like(q);
  constexpr int WARPS = 4, KEYS = 16;
  const size_t bytes = (KEYS * (2 * width + 1) + WARPS * width) * sizeof(float);
  auto pointer = [](const torch::Tensor& t) { return reinterpret_cast<__nv_bfloat16*>(t.data_ptr<at::BFloat16>()); };
  attention_kernel<WARPS, KEYS><<<dim3((tokens + WARPS - 1) / WARPS, heads), dim3(32, WARPS), bytes,
                                  at::cuda::getCurrentCUDAStream()>>>(pointer(q), pointer(k), pointer(v), pointer(o),
                                                                      tokens, width, 1.f / sqrtf(width));
  return o;
}
"""
CPP = """
torch::Tensor attention(torch::Tensor q, torch::Tensor k, torch::Tensor v);
"""
module = load_inline(
    name="attention_online",
    cpp_sources=CPP,
    cuda_sources=CUDA,
    functions=["attention"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        return module.attention(q, k, v)
