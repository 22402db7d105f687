"""Layer normalisation in two passes over a row that is held in registers.

row: lower precision inside
problem: problems/honest_layer_norm.py
backend: triton
screen: passes
like: triton/bfloat16_rows, triton/half_sums
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def layer_norm_kernel(x, weight, bias, y, cols, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < cols
    values = tl.load(x + row * cols + at, mask=inside, other=0.0)
    mean = tl.sum(values, axis=0) / cols
    centred = tl.where(inside, values - mean, 0.0)
    factor = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / cols + epsilon)
    result = centred * factor * tl.load(weight + at, mask=inside) + tl.load(bias + at, mask=inside)
    tl.store(y + row * cols + at, result, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)

    def forward(self, x):
        x = x.cuda()
        y = torch.empty_like(x)
        norm, (rows, cols) = self.norm, x.shape
        block = triton.next_power_of_2(cols)
        layer_norm_kernel[(rows,)](x, norm.weight, norm.bias, y, cols, norm.eps, BLOCK=block)
        return y
