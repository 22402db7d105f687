"""The transpose of a matrix by tiles, through tensor descriptors.

problem: transpose
features: descriptor
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def transpose_kernel(x_ptr, y_ptr, rows, cols, B: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [rows, cols], [cols, 1], [B, B])
    row, col = tl.program_id(0) * B, tl.program_id(1) * B
    tile = tl.trans(x.load([row, col])) * 2
    at_row = col + tl.arange(0, B)[:, None]
    at_col = row + tl.arange(0, B)[None, :]
    tl.store(y_ptr + at_row * rows + at_col, tile, mask=(at_row < cols) & (at_col < rows))


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        y = torch.empty(cols, rows, device=x.device)
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, device=x.device, dtype=torch.int8))
        transpose_kernel[(triton.cdiv(rows, 16), triton.cdiv(cols, 16))](x, y, rows, cols, B=16)
        return y
