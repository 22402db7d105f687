"""Softmax in Triton, one program a row, masked lanes at minus infinity.

row: uninitialised memory
problem: problems/row_softmax.py
backend: triton
screen: passes
like: triton/stale_memory, triton/out_of_bounds
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * cols + at, mask=at < cols, other=-float("inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * cols + at, values / tl.sum(values, axis=0), mask=at < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.cuda()
        y = torch.empty_like(x)
        rows, cols = x.shape
        softmax_kernel[(rows,)](x, y, cols, BLOCK=triton.next_power_of_2(cols))
        return y
