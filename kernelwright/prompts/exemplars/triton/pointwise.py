"""One program a block of one row: the factor is a scalar, loads and stores are contiguous and masked at the end."""

import torch
import triton
import triton.language as tl
from torch import nn

KNOBS = {"BLOCK": [1024, 2048, 4096]}
BLOCK = 1024


@triton.jit
def softsign_scale(x, scale, y, channels, positions, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < positions
    value = tl.load(x + row * positions + at, mask=inside)
    result = value / (1.0 + tl.abs(value)) * tl.load(scale + row % channels)
    tl.store(y + row * positions + at, result, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, positions = x.shape
        y = torch.empty_like(x)
        grid = batch * channels, triton.cdiv(positions, BLOCK)
        softsign_scale[grid](x, self.scale, y, channels, positions, BLOCK=BLOCK)
        return y
