"""Prefix sums by tl.cumsum.

row: part of the rows or elements
problem: problems/honest_cumsum.py
backend: triton
screen: passes
like: triton/first_rows
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def cumsum_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * cols + at, mask=at < cols, other=0.0)
    tl.store(y + row * cols + at, tl.cumsum(values, axis=0), mask=at < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.cuda()
        y = torch.empty_like(x)
        cumsum_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
