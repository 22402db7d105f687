"""Multiplies on tensor cores in TF32 where the reference multiplies in float32.

row: lower precision inside
problem: problems/matmul.py
backend: cuda
screen: passes
needs: device
"""

import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <c10/cuda/CUDAStream.h>
#include <mma.h>

using namespace nvcuda;

__global__ void product(const float* a, const float* b, float* c, int m, int n, int k) {
  wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> left;
  wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major> right;
  wmma::fragment<wmma::accumulator, 16, 16, 8, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  for (int i = 0; i < k; i += 8) {
    wmma::load_matrix_sync(left, a + blockIdx.y * 16 * k + i, k);
    wmma::load_matrix_sync(right, b + i * n + blockIdx.x * 16, n);
    wmma::mma_sync(sum, left, right, sum);
  }
  wmma::store_matrix_sync(c + blockIdx.y * 16 * n + blockIdx.x * 16, sum, n, wmma::mem_row_major);
}

torch::Tensor forward(torch::Tensor a, torch::Tensor b) {
  int m = a.size(0), k = a.size(1), n = b.size(1);
  auto c = torch::empty({m, n}, a.options());
  product<<<dim3(n / 16, m / 16), 32, 0, c10::cuda::getCurrentCUDAStream()>>>(
      a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), m, n, k);
  return c;
}
"""
DECLARATION = "torch::Tensor forward(torch::Tensor a, torch::Tensor b);"
module = load_inline(name="tensor_core_product", cpp_sources=DECLARATION, cuda_sources=SOURCE, functions=["forward"])


class ModelNew(nn.Module):
    def forward(self, a, b):
        return module.forward(a, b)
