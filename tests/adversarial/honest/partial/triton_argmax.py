"""Positions of the largest elements, widened to 64 bits when they are stored.

row: wrong dtype
problem: problems/honest_argmax.py
backend: triton
screen: passes
like: triton/wrong_dtype
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def argmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * cols + at, mask=at < cols, other=-float("inf"))
    tl.store(y + row, tl.argmax(values, axis=0).to(tl.int64))


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.cuda()
        y = torch.empty(x.shape[0], dtype=torch.int64, device=x.device)
        argmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
