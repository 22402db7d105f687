"""One kernel with four results of two dtypes, returned in a nested dictionary.

row: forged result messages
problem: problems/honest_row_statistics.py
backend: triton
screen: passes
like: triton/wrong_shape
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def statistics_kernel(x, mean, low, high, count, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < cols
    values = tl.load(x + row * cols + at, mask=inside, other=0.0)
    tl.store(mean + row, tl.sum(values, axis=0) / cols)
    tl.store(low + row, tl.min(tl.where(inside, values, float("inf")), axis=0))
    tl.store(high + row, tl.max(tl.where(inside, values, -float("inf")), axis=0))
    tl.store(count + row, tl.sum((values > 0).to(tl.int64), axis=0))


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.cuda()
        rows, cols = x.shape
        mean, low, high = (torch.empty(rows, device=x.device) for _ in range(3))
        count = torch.empty(rows, dtype=torch.int64, device=x.device)
        statistics_kernel[(rows,)](x, mean, low, high, count, cols, BLOCK=triton.next_power_of_2(cols))
        return {"mean": mean, "range": (low, high), "positive": {"count": count}}
