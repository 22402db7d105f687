"""Sums of columns: programs add what they have to one buffer, one at a time, behind a lock.

problem: column_sum
features: atomics
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def column_kernel(x, y, lock, rows, cols, R: tl.constexpr, C: tl.constexpr):
    row = tl.program_id(0) * R + tl.arange(0, R)
    at = tl.arange(0, C)
    mask = (row[:, None] < rows) & (at[None, :] < cols)
    part = tl.sum(tl.load(x + row[:, None] * cols + at[None, :], mask=mask, other=0.0), axis=0)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    count = tl.load(lock + 1)
    if count == 0:
        tl.atomic_xchg(lock + 1, 1)
    else:
        part += tl.load(y + at, mask=at < cols)
    tl.store(y + at, part, mask=at < cols)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        y = torch.empty(cols, device=x.device)
        lock = torch.zeros(2, dtype=torch.int32, device=x.device)
        column_kernel[(triton.cdiv(rows, 8),)](x, y, lock, rows, cols, R=8, C=triton.next_power_of_2(cols))
        return y
