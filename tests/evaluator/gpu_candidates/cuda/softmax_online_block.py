"""Softmax of rows with an online pass; pairs of maximum and sum are joined over the block.

problem: softmax
features: launcher, warp, dynamic
"""

from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>

struct State {
  float largest, total;
};

__device__ State joined(State a, State b) {
  const bool a_higher = a.largest > b.largest;
  const State high = a_higher ? a : b, low = a_higher ? b : a;
  if (low.largest == -INFINITY) return high;
  return {high.largest, high.total + low.total * __expf(low.largest - high.largest)};
}

__global__ void softmax_kernel(const float* __restrict__ x, float* __restrict__ y, int cols) {
  extern __shared__ State states[];
  const float* from = x + (size_t)blockIdx.x * cols;
  State s{-INFINITY, 0.f};
  for (int c = threadIdx.x; c < cols; c += blockDim.x) s = joined(s, State{from[c], 1.f});
  for (int offset = warpSize / 2; offset > 0; offset /= 2) {
    State other{__shfl_down_sync(0xffffffff, s.largest, offset), __shfl_down_sync(0xffffffff, s.total, offset)};
    s = joined(s, other);
  }
  const int warp = threadIdx.x / warpSize, lane = threadIdx.x % warpSize;
  if (lane == 0) states[warp] = s;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < (int)(blockDim.x / warpSize); ++w) s = joined(s, states[w]);
    states[0] = s;
  }
  __syncthreads();
  s = states[0];
  for (int c = threadIdx.x; c < cols; c += blockDim.x)
    y[(size_t)blockIdx.x * cols + c] = expf(from[c] - s.largest) / s.total;
}

torch::Tensor softmax(torch::Tensor x) {
  auto y = torch::empty_like(x);
  const int threads = 128;
  const size_t bytes = threads / 32 * sizeof(State);
  softmax_kernel<<<x.size(0), threads, bytes>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
  return y;
}
"""
CPP = """
torch::Tensor softmax(torch::Tensor x);
"""
module = load_inline(
    name="softmax_online_block",
    cpp_sources=CPP,
    cuda_sources=CUDA,
    functions=["softmax"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return module.softmax(x)
