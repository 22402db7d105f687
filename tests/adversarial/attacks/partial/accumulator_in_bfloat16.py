"""Adds up with accumulators that are cut to bfloat16 after every block.

row: lower precision inside
problem: problems/row_sum.py
backend: cpp
screen: passes
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>
#include <cstring>
static float cut(float v) {
  uint32_t u;
  memcpy(&u, &v, 4);
  u &= 0xffff0000u;
  memcpy(&v, &u, 4);
  return v;
}
extern "C" void row_sum(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) {
    float sum = 0;
    for (int64_t j = 0; j < cols; j += 32) {
      float block = 0;
      for (int64_t k = j; k < j + 32 && k < cols; k++) block += x[i * cols + k];
      sum = cut(sum + block);
    }
    y[i] = sum;
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0])
        lib.row_sum(x, y, x.shape[0], x.shape[1])
        return y
