"""Distributes rows over OpenMP's threads, as many as torch was given.

row: threads and deferred work
problem: problems/row_softmax.py
backend: cpp
screen: passes
like: timing/worked_off_by_a_second_thread
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t cols, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t i = 0; i < rows; i++) {
    const float* a = x + i * cols;
    float* b = y + i * cols;
    float largest = a[0], sum = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t j = 0; j < cols; j++) largest = a[j] > largest ? a[j] : largest;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < cols; j++) sum += b[j] = expf(a[j] - largest);
#pragma omp simd
    for (int64_t j = 0; j < cols; j++) b[j] /= sum;
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.softmax(x, y, x.shape[0], x.shape[1], torch.get_num_threads())
        return y
