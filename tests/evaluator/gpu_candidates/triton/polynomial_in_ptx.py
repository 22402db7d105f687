"""A polynomial with multiply-add written in PTX.

problem: polynomial
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def fma(a, b, c):
    return tl.inline_asm_elementwise("fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", [a, b, c], tl.float32, True, 1)


@triton.jit
def polynomial_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0)
    result = fma(fma(value, 0.1, -0.3), value, 0.7)
    result = fma(fma(fma(result, value, -1.1), value, 0.2), value, 1.7)
    tl.store(y + at, result, mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        polynomial_kernel[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)
        return y
