"""Each row as bytes, rounded by libdevice.

problem: quantise
features: libdevice
"""

import torch
import triton
import triton.language as tl
from torch import nn
from triton.language.extra import libdevice


@triton.jit
def quantise_kernel(x, q, scales, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * cols + at, mask=at < cols, other=0.0)
    scale = tl.maximum(tl.max(tl.abs(values), 0), 1e-6) / 127
    tl.store(q + row * cols + at, libdevice.rint(libdevice.div_rn(values, scale)).to(tl.int8), mask=at < cols)
    tl.store(scales + row, scale)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        q = torch.empty(rows, cols, dtype=torch.int8, device=x.device)
        scales = torch.empty(rows, device=x.device)
        quantise_kernel[(rows,)](x, q, scales, cols, BLOCK=triton.next_power_of_2(cols))
        return q, scales
