"""A matrix product over block pointers with boundary checks.

row: part of the rows or elements
problem: problems/matmul.py
backend: triton
screen: passes
like: triton/made_pointers, triton/whole_blocks
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def matmul_kernel(a, b, c, m, k, n, BLOCK: tl.constexpr):
    row, col = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    left = tl.make_block_ptr(a, (m, k), (k, 1), (row, 0), (BLOCK, BLOCK), (1, 0))
    right = tl.make_block_ptr(b, (k, n), (n, 1), (0, col), (BLOCK, BLOCK), (1, 0))
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for _ in range(0, k, BLOCK):
        x = tl.load(left, boundary_check=(0, 1), padding_option="zero")
        y = tl.load(right, boundary_check=(0, 1), padding_option="zero")
        total = tl.dot(x, y, total, allow_tf32=False)
        left = tl.advance(left, (0, BLOCK))
        right = tl.advance(right, (BLOCK, 0))
    out = tl.make_block_ptr(c, (m, n), (n, 1), (row, col), (BLOCK, BLOCK), (1, 0))
    tl.store(out, total, boundary_check=(0, 1))


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.cuda(), b.cuda()
        (m, k), n = a.shape, b.shape[1]
        c = torch.empty(m, n, device=a.device, dtype=a.dtype)
        matmul_kernel[(triton.cdiv(m, 16), triton.cdiv(n, 16))](a, b, c, m, k, n, BLOCK=16)
        return c
