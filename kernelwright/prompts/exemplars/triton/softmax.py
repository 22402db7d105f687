"""The reduced dimension is not contiguous: a program owns neighbouring positions and walks over the channels twice,
keeping a running maximum and the sum that belongs to it, so that every load is coalesced.
"""

import torch
import triton
import triton.language as tl
from torch import nn

KNOBS = {"BLOCK": [128, 256, 512]}
BLOCK = 256


@triton.jit
def log_softmax(x, y, channels, positions, BLOCK: tl.constexpr):
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < positions
    first = tl.program_id(0).to(tl.int64) * channels * positions + at
    top = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for c in range(channels):
        value = tl.load(x + first + c * positions, mask=inside, other=0.0)
        higher = tl.maximum(top, value)
        total = total * tl.exp(top - higher) + tl.exp(value - higher)
        top = higher
    shift = top + tl.log(total)
    for c in range(channels):
        value = tl.load(x + first + c * positions, mask=inside)
        tl.store(y + first + c * positions, value - shift, mask=inside)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, positions = x.shape
        y = torch.empty_like(x)
        log_softmax[(batch, triton.cdiv(positions, BLOCK))](x, y, channels, positions, BLOCK=BLOCK)
        return y
