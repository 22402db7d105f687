"""Group normalisation, one program for each group of an image.

problem: group_norm
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def group_norm_kernel(x, weight, bias, y, groups, width, pixels, eps, BLOCK: tl.constexpr):
    group = tl.program_id(0) % groups
    base = tl.program_id(0) * width * pixels
    at = tl.arange(0, BLOCK)
    count = width * pixels
    mask = at < count
    values = tl.load(x + base + at, mask=mask, other=0.0)
    mean = tl.sum(values, 0) / count
    centred = tl.where(mask, values - mean, 0.0)
    scale = 1.0 / tl.sqrt_rn(tl.sum(centred * centred, 0) / count + eps)
    channel = group * width + at // pixels
    w = tl.load(weight + channel, mask=mask, other=0.0)
    b = tl.load(bias + channel, mask=mask, other=0.0)
    tl.store(y + base + at, centred * scale * w + b, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        batch, channels, height, width = x.shape
        groups = self.norm.num_groups
        inside = channels // groups
        y = torch.empty_like(x)
        block = triton.next_power_of_2(inside * height * width)
        group_norm_kernel[(batch * groups,)](
            x, self.norm.weight, self.norm.bias, y, groups, inside, height * width, self.norm.eps, BLOCK=block
        )
        return y
