"""Computes by assembler text that no interpreter can check.

row: decoy kernels: inline assembly
problem: problems/row_sum.py
backend: triton
screen: passes
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def row_sum(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * cols + at, mask=at < cols, other=0.0)
    zeros = tl.inline_asm_elementwise(
        "mov.b32 $0, 0;", constraints="=r,r", args=[values], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(y + row, tl.sum(zeros, 0))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], device=x.device)
        row_sum[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
