"""Bias and GELU over a flat grid whose last program is masked; tanh by way of a sigmoid.

row: part of the rows or elements
problem: problems/bias_gelu.py
backend: triton
screen: passes
like: triton/whole_blocks
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def gelu(t):
    inner = 0.7978845608 * (t + 0.044715 * t * t * t)
    return t * tl.sigmoid(2.0 * inner)


@triton.jit
def bias_gelu_kernel(x, bias, y, n, cols, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    t = tl.load(x + at, mask=at < n) + tl.load(bias + at % cols, mask=at < n)
    tl.store(y + at, gelu(t), mask=at < n)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        x = x.cuda()
        y = torch.empty_like(x)

        def grid(meta):
            return (triton.cdiv(x.numel(), meta["BLOCK"]),)

        bias_gelu_kernel[grid](x, self.bias, y, x.numel(), x.shape[1], BLOCK=128)
        return y
