"""Runs its kernel on a stream of its own where there is a GPU, and makes the current stream wait for it.

row: side streams
problem: problems/row_sum.py
backend: triton
screen: passes
like: cuda/side_stream
"""

import contextlib

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def row_sum_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    tl.store(y + row, tl.sum(tl.load(x + row * cols + at, mask=at < cols, other=0.0), axis=0))


@contextlib.contextmanager
def own_stream():
    """A stream that starts after the current one, and that the current one waits for."""
    if not torch.cuda.is_available() or torch.version.cuda is None:
        yield
        return
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.cuda()
        y = torch.empty(x.shape[0], device=x.device)
        with own_stream():
            row_sum_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
