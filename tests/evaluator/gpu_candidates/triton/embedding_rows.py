"""Rows of a table, a block of columns a program.

problem: embedding
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def gather_kernel(ids, table, y, width, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(ids + token)
    values = tl.load(table + row * width + at, mask=at < width)
    tl.store(y + token * width + at, values, mask=at < width)


class ModelNew(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.table = nn.Embedding(words, width)

    def forward(self, ids):
        width = self.table.weight.shape[1]
        y = torch.empty(*ids.shape, width, device=ids.device, dtype=self.table.weight.dtype)
        gather_kernel[(ids.numel(), triton.cdiv(width, 32))](ids, self.table.weight, y, width, BLOCK=32)
        return y
