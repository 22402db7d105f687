"""A boolean result, stored as 8-bit integers and compared with zero by the view's dtype.

row: wrong dtype
problem: problems/honest_mask.py
backend: triton
screen: passes
like: triton/wrong_dtype
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def larger_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left = tl.load(x + at, mask=at < n)
    right = tl.load(y + at, mask=at < n)
    tl.store(out + at, (left > right).to(tl.int8), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x, y):
        x, y = x.cuda(), y.cuda()
        out = torch.empty(x.shape, dtype=torch.int8, device=x.device)
        larger_kernel[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)
        return out.view(torch.bool)
