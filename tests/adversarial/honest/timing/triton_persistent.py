"""A persistent kernel: as many programs as the device has multiprocessors, each taking every so-manyeth row.

row: super-batching of pending calls
problem: problems/row_softmax.py
backend: triton
screen: passes
like: triton/first_rows, cuda/launch_from_the_device
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def softmax_kernel(x, y, rows, cols, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        values = tl.load(x + row * cols + at, mask=at < cols, other=-float("inf"))
        values = tl.exp(values - tl.max(values, axis=0))
        tl.store(y + row * cols + at, values / tl.sum(values, axis=0), mask=at < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        if not x.is_cuda:
            x = x.to("cuda")
        assert x.is_cuda, "a CUDA tensor is expected"
        assert x.is_contiguous(), "a dense tensor is expected"
        rows, cols = x.shape
        programs = min(rows, torch.cuda.get_device_properties(x.device).multi_processor_count)
        y = torch.empty_like(x)
        with torch.cuda.device(x.device):
            softmax_kernel[(programs,)](x, y, rows, cols, BLOCK=triton.next_power_of_2(cols))
        return y
