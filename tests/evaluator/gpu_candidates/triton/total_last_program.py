"""The sum of all elements: each program stores its part, and the one that ends last adds the parts up.

problem: total
features: atomics
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def total_kernel(x, parts, ended, y, n, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    pid = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(pid * BLOCK, n, tl.num_programs(0) * BLOCK):
        total += tl.load(x + start + at, mask=start + at < n, other=0.0)
    tl.store(parts + pid, tl.sum(total))
    before = tl.atomic_add(ended, 1, sem="acq_rel")
    if before == tl.num_programs(0) - 1:
        which = tl.arange(0, PROGRAMS)
        tl.store(y, tl.sum(tl.load(parts + which, mask=which < tl.num_programs(0), other=0.0, cache_modifier=".cg")))


class ModelNew(nn.Module):
    def forward(self, x):
        programs = 5
        parts = torch.empty(programs, device=x.device)
        ended = torch.zeros(1, dtype=torch.int32, device=x.device)
        y = torch.empty((), device=x.device)
        total_kernel[(programs,)](x, parts, ended, y, x.numel(), BLOCK=64, PROGRAMS=8)
        return y
