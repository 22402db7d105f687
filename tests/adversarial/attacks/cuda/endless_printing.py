"""Prints from the device without an end.

row: endless output: of the device
problem: problems/row_sum.py
backend: cuda
screen: passes
"""

import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <c10/cuda/CUDAStream.h>

__global__ void row_sum(const float* x, float* y, int cols) {
  for (;;) printf("%d %d\n", blockIdx.x, threadIdx.x);
  __shared__ float partial[256];
  float total = 0;
  for (int j = threadIdx.x; j < cols; j += blockDim.x) total += x[(long)blockIdx.x * cols + j];
  partial[threadIdx.x] = total;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) y[blockIdx.x] = partial[0];
}

torch::Tensor forward(torch::Tensor x) {
  cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  auto y = torch::empty({x.size(0)}, x.options());
  row_sum<<<x.size(0), 256, 0, stream>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
  return y;
}
"""
DECLARATION = "torch::Tensor forward(torch::Tensor x);"
module = load_inline(name="endless_printing", cpp_sources=DECLARATION, cuda_sources=SOURCE, functions=["forward"])


class ModelNew(nn.Module):
    def forward(self, x):
        return module.forward(x)
