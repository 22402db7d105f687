"""Pooling of windows of 3 x 3 through packed accessors, for every floating dtype.

problem: max_pool
features: launcher, template
"""

from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>

#include <limits>

template <typename scalar_t>
__global__ void pool_kernel(const torch::PackedTensorAccessor32<scalar_t, 4, torch::RestrictPtrTraits> x,
                            torch::PackedTensorAccessor32<scalar_t, 4, torch::RestrictPtrTraits> y) {
  const int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  const int image = blockIdx.z / x.size(1), channel = blockIdx.z % x.size(1);
  if (row >= y.size(2) || col >= y.size(3)) return;
  scalar_t best = -std::numeric_limits<scalar_t>::infinity();
  for (int r = max(0, 2 * row - 1); r < min((int)x.size(2), 2 * row + 2); ++r)
    for (int c = max(0, 2 * col - 1); c < min((int)x.size(3), 2 * col + 2); ++c)
      best = x[image][channel][r][c] > best ? x[image][channel][r][c] : best;
  y[image][channel][row][col] = best;
}

torch::Tensor pool(torch::Tensor x) {
  const auto side = (x.size(2) - 1) / 2 + 1;
  auto y = torch::empty({x.size(0), x.size(1), side, side}, x.options());
  const dim3 block(8, 8), grid((side + 7) / 8, (side + 7) / 8, x.size(0) * x.size(1));
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "pool", ([&] {
    pool_kernel<scalar_t><<<grid, block>>>(x.packed_accessor32<scalar_t, 4, torch::RestrictPtrTraits>(),
                                           y.packed_accessor32<scalar_t, 4, torch::RestrictPtrTraits>());
  }));
  return y;
}
"""
CPP = """
torch::Tensor pool(torch::Tensor x);
"""
module = load_inline(
    name="max_pool_accessors",
    cpp_sources=CPP,
    cuda_sources=CUDA,
    functions=["pool"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return module.pool(x)
