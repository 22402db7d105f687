"""Batch normalisation in eval mode from the running statistics as they are, a program for each plane.

row: weights folded
problem: problems/honest_batch_norm.py
backend: triton
screen: passes
like: triton/folded_weights
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def batch_norm_kernel(x, mean, variance, weight, bias, y, channels, pixels, epsilon, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    channel = plane % channels
    factor = tl.load(weight + channel) / tl.sqrt(tl.load(variance + channel) + epsilon)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + plane * pixels + at, mask=at < pixels)
    values = (values - tl.load(mean + channel)) * factor + tl.load(bias + channel)
    tl.store(y + plane * pixels + at, tl.maximum(values, 0.0), mask=at < pixels)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        x = x.cuda()
        y = torch.empty_like(x)
        batch, channels, height, width = x.shape
        batch_norm_kernel[(batch * channels,)](
            x,
            self.norm.running_mean,
            self.norm.running_var,
            self.norm.weight,
            self.norm.bias,
            y,
            channels,
            height * width,
            self.norm.eps,
            BLOCK=triton.next_power_of_2(height * width),
        )
        return y
