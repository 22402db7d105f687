"""Caches launch parameters by shape; the kernel sums a row up in blocks.

row: output cached by pointer
problem: problems/row_sum.py
backend: triton
screen: passes
like: triton/cached_by_pointer
"""

import functools

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def row_sum_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lanes = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)
        lanes += tl.load(x + row * cols + at, mask=at < cols, other=0.0)
    tl.store(y + row, tl.sum(lanes, axis=0))


@functools.cache
def launch(rows, cols):
    """Grid and block size of a shape."""
    return (rows,), min(16, triton.next_power_of_2(cols))


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.cuda()
        grid, block = launch(*x.shape)
        y = torch.empty(x.shape[0], device=x.device)
        row_sum_kernel[grid](x, y, x.shape[1], BLOCK=block)
        return y
