"""Guards an optional import of Triton by ImportError; its kernel has a branch that only `pass`es.

row: decoy kernels
problem: problems/bias_gelu.py
backend: triton
screen: passes
like: triton/swallowed_exception, triton/never_launched
"""

import torch
import triton
import triton.language as tl
from torch import nn

try:
    from triton.language.extra import libdevice
except ImportError:
    libdevice = None


@triton.jit
def bias_gelu_kernel(x, bias, y, cols, BLOCK: tl.constexpr, CHECK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    if CHECK:
        pass
    t = tl.load(x + row * cols + at, mask=at < cols) + tl.load(bias + at, mask=at < cols)
    power = tl.exp(-2.0 * 0.7978845608 * (t + 0.044715 * t * t * t))
    tl.store(y + row * cols + at, t / (1.0 + power), mask=at < cols)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        x = x.cuda()
        y = torch.empty_like(x)
        block = triton.next_power_of_2(x.shape[1])
        bias_gelu_kernel[(x.shape[0],)](x, self.bias, y, x.shape[1], BLOCK=block, CHECK=libdevice is None)
        return y
