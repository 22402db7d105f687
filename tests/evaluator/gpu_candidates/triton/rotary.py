"""Rotary position embedding, all heads of a token in one program.

problem: rotary
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def rotary_kernel(x, cos, sin, y, heads, HEADS: tl.constexpr, HALF: tl.constexpr):
    token = tl.program_id(0)
    head = tl.arange(0, HEADS)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    at = token * heads * 2 * HALF + head * 2 * HALF + pair
    c = tl.load(cos + token * HALF + pair)
    s = tl.load(sin + token * HALF + pair)
    left = tl.load(x + at, mask=head < heads, other=0.0)
    right = tl.load(x + at + HALF, mask=head < heads, other=0.0)
    tl.store(y + at, left * c - right * s, mask=head < heads)
    tl.store(y + at + HALF, right * c + left * s, mask=head < heads)


class ModelNew(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        angles = torch.arange(tokens)[:, None] / 10000.0 ** (torch.arange(width // 2) * 2 / width)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x):
        tokens, heads, width = x.shape
        y = torch.empty_like(x)
        rotary_kernel[(tokens,)](x, self.cos, self.sin, y, heads, HEADS=triton.next_power_of_2(heads), HALF=width // 2)
        return y
