"""Running sums by an associative scan with an operator of its own.

problem: cumsum
features: scan
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def cumsum_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * cols + at, mask=at < cols, other=0.0)
    tl.store(y + row * cols + at, tl.associative_scan(values, 0, add), mask=at < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        rows, cols = x.shape
        cumsum_kernel[(rows,)](x, y, cols, BLOCK=triton.next_power_of_2(cols), num_warps=8)
        return y
