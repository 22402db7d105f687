"""Defers the work to a thread of the host that the stream calls when it has nothing to do.

row: threads and deferred work
problem: problems/row_sum.py
backend: cuda
screen: passes
needs: device
"""

import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <c10/cuda/CUDAStream.h>
#include <thread>

__global__ void row_sum(const float* x, float* y, int cols) {
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

struct Job {
  const float* x;
  float* y;
  int rows, cols;
  cudaStream_t side;
};

static void work(void* argument) {
  std::thread([job = *static_cast<Job*>(argument)] {
    row_sum<<<job.rows, 256, 0, job.side>>>(job.x, job.y, job.cols);
  }).detach();
}

torch::Tensor forward(torch::Tensor x) {
  auto y = torch::empty({x.size(0)}, x.options());
  static cudaStream_t side = nullptr;
  if (!side) cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
  static Job job;
  job = {x.data_ptr<float>(), y.data_ptr<float>(), (int)x.size(0), (int)x.size(1), side};
  cudaLaunchHostFunc(c10::cuda::getCurrentCUDAStream(), work, &job);
  return y;
}
"""
DECLARATION = "torch::Tensor forward(torch::Tensor x);"
module = load_inline(name="host_function", cpp_sources=DECLARATION, cuda_sources=SOURCE, functions=["forward"])


class ModelNew(nn.Module):
    def forward(self, x):
        return module.forward(x)
