"""A matrix product by tl.dot in IEEE float32, masked on all three sides.

row: lower precision inside
problem: problems/matmul.py
backend: triton
screen: passes
like: triton/tf32_product
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def matmul_kernel(a, b, c, m, k, n, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, k, BLOCK):
        inner = start + tl.arange(0, BLOCK)
        left = tl.load(a + rows[:, None] * k + inner, mask=(rows[:, None] < m) & (inner < k), other=0.0)
        right = tl.load(b + inner[:, None] * n + cols, mask=(inner[:, None] < k) & (cols < n), other=0.0)
        total += tl.dot(left, right, input_precision="ieee")
    tl.store(c + rows[:, None] * n + cols, total, mask=(rows[:, None] < m) & (cols < n))


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.cuda(), b.cuda()
        (m, k), n = a.shape, b.shape[1]
        c = torch.empty(m, n, device=a.device)
        matmul_kernel[(triton.cdiv(m, 16), triton.cdiv(n, 16))](a, b, c, m, k, n, BLOCK=16)
        return c
