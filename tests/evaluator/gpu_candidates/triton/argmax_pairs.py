"""The place of the largest of each row by a reduction over pairs of value and place.

problem: argmax
features: reduction
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def better(value_a, place_a, value_b, place_b):
    first = (value_a > value_b) | ((value_a == value_b) & (place_a < place_b))
    return tl.where(first, value_a, value_b), tl.where(first, place_a, place_b)


@triton.jit
def argmax_kernel(x, y, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    at = tl.arange(0, BLOCK)[None, :]
    values = tl.load(x + row * cols + at, mask=(row < rows) & (at < cols), other=-float("inf"))
    _, place = tl.reduce((values, tl.broadcast_to(at, (ROWS, BLOCK))), 1, better)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tl.store(y + row, place.to(tl.int64), mask=row < rows)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        y = torch.empty(rows, dtype=torch.int64, device=x.device)
        argmax_kernel[(triton.cdiv(rows, 2),)](x, y, rows, cols, ROWS=2, BLOCK=triton.next_power_of_2(cols))
        return y
