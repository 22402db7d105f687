"""Adds parts of a row up by atomics into zeros; the order of additions is nobody's promise.

row: part of the rows or elements
problem: problems/row_sum.py
backend: triton
screen: passes
like: triton/order_of_programs, triton/first_rows
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def part_sum_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.static_assert(BLOCK % 2 == 0)
    tl.atomic_add(y + row, tl.sum(tl.load(x + row * cols + at, mask=at < cols, other=0.0), axis=0))


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.cuda()
        rows, cols = x.shape
        y = torch.zeros(rows, device="cuda")
        part_sum_kernel[(rows, triton.cdiv(cols, 16))](x, y, cols, BLOCK=16)
        return y
