"""Layer normalisation with Welford's moments, joined by a reduction over tuples.

problem: layer_norm
features: reduction
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def joined(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    delta = mean_b - mean_a
    count = count_a + count_b
    share = tl.where(count == 0.0, 0.0, count_b / count)
    return mean_a + delta * share, m2_a + m2_b + delta * delta * count_a * share, count


@triton.jit
def layer_norm_kernel(x, weight, bias, y, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < cols
    values = tl.load(x + row * cols + at, mask=inside, other=0.0)
    mean, m2, count = tl.reduce((values, tl.zeros_like(values), inside.to(tl.float32)), 0, joined)
    scale = tl.rsqrt(m2 / count + eps)
    w = tl.load(weight + at, mask=inside)
    b = tl.load(bias + at, mask=inside)
    tl.store(y + row * cols + at, (values - mean) * scale * w + b, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        y = torch.empty_like(x)
        rows, cols = x.shape
        block = triton.next_power_of_2(cols)
        layer_norm_kernel[(rows,)](x, self.norm.weight, self.norm.bias, y, cols, self.norm.eps, BLOCK=block)
        return y
