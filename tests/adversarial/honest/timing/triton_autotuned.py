"""Leaves the block size to triton.autotune and the number of warps to a heuristic.

row: telling checks from timing
problem: problems/honest_scaled_add.py
backend: triton
screen: passes
like: triton/tuned_to_nothing, triton/tuned_by_a_hook
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.autotune(
    configs=[triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 128}, num_warps=4)], key=["n"]
)
@triton.heuristics({"EVEN": lambda arguments: arguments["n"] % arguments["BLOCK"] == 0})
@triton.jit
def scaled_add_kernel(x, y, out, n, alpha, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out + at, tl.load(y + at) + alpha * tl.load(x + at))
    else:
        inside = at < n
        tl.store(out + at, tl.load(y + at, mask=inside) + alpha * tl.load(x + at, mask=inside), mask=inside)


class ModelNew(nn.Module):
    def forward(self, x, y, alpha):
        x, y = x.cuda().contiguous(), y.cuda().contiguous()
        out = torch.empty_like(y)
        n = y.numel()
        scaled_add_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, alpha)
        return out
