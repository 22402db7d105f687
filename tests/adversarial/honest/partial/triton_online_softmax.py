"""Online softmax: one loop over the blocks of a row for maximum and sum, one to write.

row: lower precision inside
problem: problems/row_softmax.py
backend: triton
screen: passes
like: triton/half_of_the_rows
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    x += tl.program_id(0) * cols
    y += tl.program_id(0) * cols
    largest = -float("inf")
    total = 0.0
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)
        values = tl.load(x + at, mask=at < cols, other=-float("inf"))
        following = tl.maximum(largest, tl.max(values, axis=0))
        total = total * tl.exp(largest - following) + tl.sum(tl.exp(values - following), axis=0)
        largest = following
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)
        values = tl.load(x + at, mask=at < cols, other=-float("inf"))
        tl.store(y + at, tl.exp(values - largest) / total, mask=at < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.cuda()
        y = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=16)
        return y
