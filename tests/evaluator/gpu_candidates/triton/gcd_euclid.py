"""Greatest common divisors: all lanes go on until the last of them has its own.

problem: gcd
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def gcd_kernel(a, b, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    u = tl.load(a + at, mask=at < n, other=1)
    v = tl.load(b + at, mask=at < n, other=0)
    while tl.max(v, 0) > 0:
        rest = tl.where(v > 0, u % tl.maximum(v, 1), 0)
        u = tl.where(v > 0, v, u)
        v = rest
    tl.store(y + at, u, mask=at < n)


class ModelNew(nn.Module):
    def forward(self, a, b):
        y = torch.empty_like(a)
        gcd_kernel[(triton.cdiv(a.numel(), 128),)](a, b, y, a.numel(), BLOCK=128)
        return y
