"""Allocates eight megabytes of aligned scratch in C++ on the first call and frees it when the library goes.

row: memory by heap
problem: problems/row_softmax.py
backend: cpp
screen: passes
like: host/heap_memory
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <new>

class Scratch {
 public:
  static constexpr int64_t BYTES = 8 << 20;
  Scratch() : data_(static_cast<float*>(std::aligned_alloc(4096, BYTES))) {
    if (!data_) throw std::bad_alloc();
  }
  ~Scratch() { std::free(data_); }
  float* data() { return data_; }

 private:
  float* data_;
};

extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t cols) {
  static Scratch scratch;
  float* powers = scratch.data();
  for (int64_t i = 0; i < rows; i++, x += cols, y += cols) {
    float largest = x[0];
    for (int64_t j = 1; j < cols; j++) largest = x[j] > largest ? x[j] : largest;
    double sum = 0;
    for (int64_t j = 0; j < cols; j++) sum += powers[j] = expf(x[j] - largest);
    for (int64_t j = 0; j < cols; j++) y[j] = float(powers[j] / sum);
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        if x.shape[1] > 1 << 21:
            raise ValueError("rows of more than two million elements do not fit the scratch")
        y = torch.empty_like(x)
        lib.softmax(x, y, x.shape[0], x.shape[1])
        return y
