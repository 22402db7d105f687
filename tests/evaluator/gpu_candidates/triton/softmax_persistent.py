"""Softmax by as many programs as there are processors, each over several rows.

problem: softmax
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def softmax_kernel(x, y, rows, cols, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        values = tl.load(x + row * cols + at, mask=at < cols, other=-float("inf"))
        shifted = tl.exp2((values - tl.max(values, axis=0)) * 1.4426950408889634)
        tl.store(y + row * cols + at, shifted / tl.sum(shifted, axis=0), mask=at < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        rows, cols = x.shape
        processors = torch.cuda.get_device_properties(x.device).multi_processor_count
        softmax_kernel[(min(rows, processors),)](x, y, rows, cols, BLOCK=triton.next_power_of_2(cols), STAGES=2)
        return y
