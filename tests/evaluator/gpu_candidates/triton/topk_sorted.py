"""The largest of each row, out of a row that is sorted in registers.

problem: topk
features: sort
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def topk_kernel(x, y, cols, K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * cols + at, mask=at < cols, other=-float("inf"))
    ordered = tl.sort(values, descending=True)
    tl.store(y + row * K + at, ordered, mask=at < K)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        y = torch.empty(rows, 8, device=x.device)
        topk_kernel[(rows,)](x, y, cols, K=8, BLOCK=triton.next_power_of_2(cols))
        return y
