"""RMS normalisation in bfloat16, summed in float32, two rows a program.

problem: rms_norm
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def rms_norm_kernel(x_ptr, w_ptr, y_ptr, rows, cols, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    at = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (at < cols)
    x = tl.load(x_ptr + row * cols + at, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + at, mask=at < cols, other=0.0).to(tl.float32)
    scale = tl.math.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / cols + eps)
    tl.store(y_ptr + row * cols + at, (x * scale * w).to(y_ptr.dtype.element_ty), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features, dtype=torch.bfloat16))

    def forward(self, x):
        y = torch.empty_like(x)
        rows, cols = x.shape
        grid = (triton.cdiv(rows, 2),)
        rms_norm_kernel[grid](x, self.weight, y, rows, cols, 1e-5, ROWS=2, BLOCK=triton.next_power_of_2(cols))
        return y
