"""A polynomial whose coefficients are a tuple.

problem: polynomial
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def horner(x, coefficients):
    value = tl.zeros_like(x)
    for i in tl.static_range(len(coefficients)):
        value = tl.fma(value, x, tl.full(x.shape, coefficients[i], tl.float32))
    return value


@triton.jit
def polynomial_kernel(x, y, coefficients, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, horner(tl.load(x + at, mask=at < n), coefficients), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        coefficients = (0.1, -0.3, 0.7, -1.1, 0.2, 1.7)
        polynomial_kernel[(triton.cdiv(x.numel(), 128),)](x, y, coefficients, x.numel(), BLOCK=128)
        return y
