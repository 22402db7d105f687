"""Hangs a method of its own on its running statistics, so that putting them back before a call costs nothing, and
updates what they were put back to: without the harness, no two calls would add up.

row: monkeypatched torch; input-independent shortcuts
problem: problems/honest_train_norm.py
backend: cpp
screen: passes
"""

import functools

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void batch_norm(const float* x, const float* weight, const float* bias, const float* mean_before,
                           const float* variance_before, const int64_t* count_before, float* mean, float* variance,
                           int64_t* count, float* y, int64_t rows, int64_t cols, double epsilon, double momentum) {
  for (int64_t j = 0; j < cols; j++) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < rows; i++) sum += x[i * cols + j];
    const double average = sum / rows;
    for (int64_t i = 0; i < rows; i++) squares += (x[i * cols + j] - average) * (x[i * cols + j] - average);
    const double factor = weight[j] / std::sqrt(squares / rows + epsilon);
    for (int64_t i = 0; i < rows; i++)
      y[i * cols + j] = float((x[i * cols + j] - average) * factor + bias[j]);
    mean[j] = float((1 - momentum) * mean_before[j] + momentum * average);
    variance[j] = float((1 - momentum) * variance_before[j] + momentum * squares / (rows - 1));
  }
  *count = *count_before + 1;
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(features)
        self.start = {name: buffer.detach().clone() for name, buffer in self.norm.named_buffers()}
        for name, buffer in self.norm.named_buffers():
            buffer.copy_ = functools.partial(self.start.__setitem__, name)

    def forward(self, x):
        norm, start = self.norm, self.start
        y = torch.empty_like(x)
        lib.batch_norm(
            x,
            norm.weight,
            norm.bias,
            start["running_mean"],
            start["running_var"],
            start["num_batches_tracked"],
            norm.running_mean,
            norm.running_var,
            norm.num_batches_tracked,
            y,
            x.shape[0],
            x.shape[1],
            norm.eps,
            norm.momentum,
        )
        return y
