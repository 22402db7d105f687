"""Lets each program build on what the one before it stored, which holds where programs run in order.

row: threads and deferred work: a race between programs
problem: problems/row_sum.py
backend: triton
screen: passes
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def row_sum(x, y, running, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * cols + at, mask=at < cols, other=0.0)
    done = tl.load(running) + 1.0
    tl.store(running, done)
    tl.store(y + row, tl.where(done == row + 1, tl.sum(values, 0), 0.0))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], device=x.device)
        running = torch.zeros(1, device=x.device)
        row_sum[(x.shape[0],)](x, y, running, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
