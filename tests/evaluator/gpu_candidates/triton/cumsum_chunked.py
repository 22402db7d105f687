"""Running sums chunk by chunk, with what was carried so far, several rows a program.

problem: cumsum
features: scan, autotune
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.autotune(configs=[triton.Config({"R": 2, "C": 32}), triton.Config({"R": 8, "C": 128})], key=["cols"])
@triton.jit
def cumsum_kernel(x, y, rows, cols, R: tl.constexpr, C: tl.constexpr):
    row = tl.program_id(0) * R + tl.arange(0, R)
    carry = tl.zeros((R,), dtype=tl.float32)
    start = 0
    while start < cols:
        at = start + tl.arange(0, C)
        mask = (row[:, None] < rows) & (at[None, :] < cols)
        values = tl.load(x + row[:, None] * cols + at[None, :], mask=mask, other=0.0)
        tl.store(y + row[:, None] * cols + at[None, :], tl.cumsum(values, axis=1) + carry[:, None], mask=mask)
        carry += tl.sum(values, axis=1)
        start += C


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        rows, cols = x.shape
        cumsum_kernel[lambda meta: (triton.cdiv(rows, meta["R"]),)](x, y, rows, cols)
        return y
