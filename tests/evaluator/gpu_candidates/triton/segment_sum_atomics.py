"""Sums of segments by atomics; each row searches for its segment.

problem: segment_sum
features: atomics
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def segment_kernel(x, offsets, y, rows, cols, segments, STEPS: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    row = tl.program_id(0) * R + tl.arange(0, R)
    low = tl.zeros((R,), tl.int32)
    high = tl.zeros((R,), tl.int32) + segments
    for _ in tl.static_range(STEPS):
        middle = (low + high) // 2
        after = tl.load(offsets + middle + 1, mask=middle < segments, other=rows) <= row
        low = tl.where(after & (low < high), middle + 1, low)
        high = tl.where(after, high, middle)
    at = tl.arange(0, C)
    mask = (row[:, None] < rows) & (at[None, :] < cols)
    values = tl.load(x + row[:, None] * cols + at[None, :], mask=mask, other=0.0)
    tl.atomic_add(y + low[:, None] * cols + at[None, :], values, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x, offsets):
        (rows, cols), segments = x.shape, offsets.numel() - 1
        y = torch.zeros(segments, cols, device=x.device)
        segment_kernel[(triton.cdiv(rows, 8),)](
            x, offsets, y, rows, cols, segments, STEPS=10, R=8, C=triton.next_power_of_2(cols)
        )
        return y
