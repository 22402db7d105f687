"""Gathers rows of a table by ids, a program for each token.

row: output cached by content
problem: problems/honest_embedding.py
backend: triton
screen: passes
like: triton/cached_by_content, triton/made_pointers
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def gather_kernel(ids, table, y, width, scale, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    word = tl.load(ids + token)
    at = tl.arange(0, BLOCK)
    row = tl.load(table + word * width + at, mask=at < width)
    tl.store(y + token * width + at, row * scale, mask=at < width)


class ModelNew(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.table = nn.Embedding(words, width)

    def forward(self, ids):
        ids = ids.cuda()
        width = self.table.embedding_dim
        y = torch.empty(ids.shape[0], width, device=ids.device)
        block = triton.next_power_of_2(width)
        gather_kernel[(ids.shape[0],)](ids, self.table.weight, y, width, width**0.5, BLOCK=block)
        return y
