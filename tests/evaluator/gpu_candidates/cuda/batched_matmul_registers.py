"""Products of many matrices in float16; each thread keeps four by four results in registers.

problem: batched_matmul
features: template
"""

import torch
from torch import nn

from kernelwright.inline import cuda

SOURCE = r"""
#include <cuda_fp16.h>

template <int BM, int BN, int BK, int TM, int TN>
__global__ void __launch_bounds__((BM / TM) * (BN / TN))
bmm(const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ c, int M, int N, int K) {
  __shared__ float as[BK][BM + 1];
  __shared__ float bs[BK][BN];
  constexpr int THREADS = (BM / TM) * (BN / TN);
  a += (long)blockIdx.z * M * K, b += (long)blockIdx.z * K * N, c += (long)blockIdx.z * M * N;
  const int tx = threadIdx.x % (BN / TN), ty = threadIdx.x / (BN / TN);
  float sum[TM][TN] = {};
  for (int k0 = 0; k0 < K; k0 += BK) {
    for (int i = threadIdx.x; i < BM * BK; i += THREADS) {
      const int m = blockIdx.y * BM + i / BK, k = k0 + i % BK;
      as[i % BK][i / BK] = m < M && k < K ? __half2float(a[m * K + k]) : 0.f;
    }
    for (int i = threadIdx.x; i < BK * BN; i += THREADS) {
      const int k = k0 + i / BN, n = blockIdx.x * BN + i % BN;
      bs[i / BN][i % BN] = k < K && n < N ? __half2float(b[k * N + n]) : 0.f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < BK; k++) {
      float left[TM], right[TN];
      for (int i = 0; i < TM; i++) left[i] = as[k][ty * TM + i];
      for (int j = 0; j < TN; j++) right[j] = bs[k][tx * TN + j];
      for (int i = 0; i < TM; i++)
        for (int j = 0; j < TN; j++) sum[i][j] = fmaf(left[i], right[j], sum[i][j]);
    }
    __syncthreads();
  }
  for (int i = 0; i < TM; i++)
    for (int j = 0; j < TN; j++) {
      const int m = blockIdx.y * BM + ty * TM + i, n = blockIdx.x * BN + tx * TN + j;
      if (m < M && n < N) c[m * N + n] = __float2half(sum[i][j]);
    }
}
"""
kernel = cuda(SOURCE, "bmm<32, 32, 8, 4, 4>", flags=["-O3"])


class ModelNew(nn.Module):
    def forward(self, a, b):
        (batch, M, K), N = a.shape, b.shape[2]
        c = torch.empty(batch, M, N, device=a.device, dtype=a.dtype)
        kernel[((N + 31) // 32, (M + 31) // 32, batch), 64](a, b, c, M, N, K)
        return c
