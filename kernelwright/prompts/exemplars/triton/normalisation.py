"""A row fits into one block: it is read once, and mean, deviations and result are computed in registers."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def instance_norm(x, y, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * columns + at, mask=inside, other=0.0)
    mean = tl.sum(value, 0) / columns
    centred = tl.where(inside, value - mean, 0.0)
    variance = tl.sum(centred * centred, 0) / columns
    tl.store(y + row * columns + at, centred / tl.sqrt(variance + eps), mask=inside)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, positions = x.shape
        y = torch.empty_like(x)
        block = triton.next_power_of_2(positions)
        warps = min(16, max(1, block // 256))  # 8 elements a thread
        instance_norm[(batch * channels,)](x, y, positions, 1e-5, BLOCK=block, num_warps=warps)
        return y
