"""The largest of each row, one after the other, in a loop that is unrolled.

problem: topk
features: reduction
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
    for i in tl.static_range(K):
        place = tl.argmax(values, axis=0)
        tl.store(y + row * K + i, tl.max(values, axis=0))
        values = tl.where(at == place, -float("inf"), values)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        y = torch.empty(rows, 8, device=x.device)
        topk_kernel[(rows,)](x, y, cols, K=8, BLOCK=triton.next_power_of_2(cols))
        return y
