"""Dropout whose random numbers the kernel makes from a seed and the place.

problem: dropout
features: random
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def dropout_kernel(x, y, n, rate, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n)
    keep = tl.rand(seed, at) > rate
    tl.store(y + at, tl.where(keep, values / (1 - rate), 0.0), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        seed = int(torch.randint(0, 2**31 - 1, ()))
        dropout_kernel[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), 0.5, seed, BLOCK=512)
        return y
