"""Normalises by the batch's own statistics and updates the running ones in place, as training mode demands.

row: in-place change of inputs
problem: problems/honest_train_norm.py
backend: cpp
screen: passes
like: harness/inputs_overwritten
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void batch_norm(const float* x, const float* weight, const float* bias, float* mean, float* variance,
                           float* y, int64_t rows, int64_t cols, double epsilon, double momentum) {
  for (int64_t j = 0; j < cols; j++) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < rows; i++) sum += x[i * cols + j];
    const double average = sum / rows;
    for (int64_t i = 0; i < rows; i++) squares += (x[i * cols + j] - average) * (x[i * cols + j] - average);
    const double factor = weight[j] / std::sqrt(squares / rows + epsilon);
    for (int64_t i = 0; i < rows; i++)
      y[i * cols + j] = float((x[i * cols + j] - average) * factor + bias[j]);
    mean[j] = float((1 - momentum) * mean[j] + momentum * average);
    variance[j] = float((1 - momentum) * variance[j] + momentum * squares / (rows - 1));
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(features)

    def forward(self, x):
        norm = self.norm
        y = torch.empty_like(x)
        lib.batch_norm(
            x,
            norm.weight,
            norm.bias,
            norm.running_mean,
            norm.running_var,
            y,
            x.shape[0],
            x.shape[1],
            norm.eps,
            norm.momentum,
        )
        norm.num_batches_tracked += 1
        return y
