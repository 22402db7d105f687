"""AVX2 intrinsics with a masked tail: the last lanes are neither read nor written.

row: part of the rows or elements
problem: problems/row_sum.py
backend: cpp
screen: passes
like: partial/tail_columns_left_out
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>
#include <immintrin.h>

alignas(32) static const int32_t MASKS[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};

static inline float horizontal(__m256 v) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
}

extern "C" __attribute__((target("avx2"))) void row_sum(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols) {
    __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    int64_t j = 0;
    for (; j + 32 <= cols; j += 32)
      for (int k = 0; k < 4; k++) sums[k] = _mm256_add_ps(sums[k], _mm256_loadu_ps(x + j + 8 * k));
    for (; j + 8 <= cols; j += 8) sums[0] = _mm256_add_ps(sums[0], _mm256_loadu_ps(x + j));
    const __m256i mask = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(MASKS + 8 - (cols - j)));
    sums[1] = _mm256_add_ps(sums[1], _mm256_maskload_ps(x + j, mask));
    y[i] = horizontal(_mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3])));
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0])
        lib.row_sum(x, y, x.shape[0], x.shape[1])
        return y
