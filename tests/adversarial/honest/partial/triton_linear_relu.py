"""A linear layer with its rectifier fused, the weights read as they lie.

row: weights folded
problem: problems/linear_relu.py
backend: triton
screen: passes
like: triton/folded_weights
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def linear_relu_kernel(x, weight, bias, y, features, outputs, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    out = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(bias + out, mask=out < outputs, other=0.0)
    inner = tl.arange(0, WIDTH)
    values = tl.load(x + row * features + inner, mask=inner < features, other=0.0)
    mask = (out[:, None] < outputs) & (inner[None, :] < features)
    weights = tl.load(weight + out[:, None] * features + inner[None, :], mask=mask, other=0.0)
    total += tl.sum(weights * values[None, :], axis=1)
    tl.store(y + row * outputs + out, tl.maximum(total, 0.0), mask=out < outputs)


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 48)

    def forward(self, x):
        x = x.cuda()
        (rows, features), outputs = x.shape, self.linear.out_features
        y = torch.empty(rows, outputs, device=x.device)
        linear_relu_kernel[(rows, triton.cdiv(outputs, 16))](
            x,
            self.linear.weight,
            self.linear.bias,
            y,
            features,
            outputs,
            BLOCK=16,
            WIDTH=triton.next_power_of_2(features),
        )
        return y
