"""Times two versions of its kernel on data of its own at construction and keeps the faster one; both are right.

row: telling checks from timing
problem: problems/row_softmax.py
backend: cpp
screen: passes
like: timing/less_precise_when_timed, timing/idle_when_built_again
"""

import time

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

template <int LANES>
static void softmax_lanes(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols, y += cols) {
    float largest = x[0], sums[LANES] = {}, sum = 0;
    for (int64_t j = 1; j < cols; j++) largest = x[j] > largest ? x[j] : largest;
    for (int64_t j = 0; j < cols; j++) sums[j % LANES] += y[j] = expf(x[j] - largest);
    for (float part : sums) sum += part;
    for (int64_t j = 0; j < cols; j++) y[j] /= sum;
  }
}

extern "C" {
void softmax_8(const float* x, float* y, int64_t rows, int64_t cols) { softmax_lanes<8>(x, y, rows, cols); }
void softmax_16(const float* x, float* y, int64_t rows, int64_t cols) { softmax_lanes<16>(x, y, rows, cols); }
}
"""
lib = cpp(SOURCE)


def seconds(function, rows=32, cols=512):
    """Time of one call on fresh random data, the first call left out."""
    x = torch.rand(rows, cols)
    y = torch.empty_like(x)
    function(x, y, rows, cols)
    started = time.perf_counter()
    function(x, y, rows, cols)
    return time.perf_counter() - started


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.softmax = min((lib.softmax_8, lib.softmax_16), key=seconds)

    def forward(self, x):
        y = torch.empty_like(x)
        self.softmax(x, y, x.shape[0], x.shape[1])
        return y
