"""Wraps its kernel in a torch.autograd.Function, as code does that is also trained.

row: inherited by subclassing
problem: problems/bias_gelu.py
backend: cpp
screen: passes
like: answers/torch_behind_a_decoy
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void bias_gelu(const float* x, const float* bias, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) {
    for (int64_t j = 0; j < cols; j++) {
      const float t = x[i * cols + j] + bias[j];
      const float inner = 0.7978845608f * (t + 0.044715f * t * t * t);
      y[i * cols + j] = 0.5f * t * (1.0f + std::tanh(inner));
    }
  }
}
"""
lib = cpp(SOURCE)


class BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias):
        ctx.save_for_backward(x, bias)
        y = torch.empty_like(x)
        lib.bias_gelu(x, bias, y, x.shape[0], x.shape[1])
        return y

    @staticmethod
    def backward(ctx, grad):
        x, bias = ctx.saved_tensors
        with torch.enable_grad():
            t = (x + bias).detach().requires_grad_()
            torch.nn.functional.gelu(t, approximate="tanh").backward(grad)
        return t.grad, t.grad.sum(0)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        return BiasGelu.apply(x, self.bias)
