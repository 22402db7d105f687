"""Two kernels with the rows' losses between them: the second one adds them up and divides.

row: shifting work between calls
problem: problems/honest_cross_entropy.py
backend: triton
screen: passes
like: triton/launched_for_show
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def row_loss_kernel(logits, labels, losses, classes, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(logits + row * classes + at, mask=at < classes, other=-float("inf"))
    largest = tl.max(values, axis=0)
    total = tl.sum(tl.exp(values - largest), axis=0)
    wanted = tl.load(logits + row * classes + tl.load(labels + row))
    tl.store(losses + row, tl.log(total) + largest - wanted)


@triton.jit
def mean_kernel(losses, result, rows, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(result, tl.sum(tl.load(losses + at, mask=at < rows, other=0.0), axis=0) / rows)


class ModelNew(nn.Module):
    def forward(self, logits, labels):
        logits, labels = logits.cuda(), labels.cuda()
        rows, classes = logits.shape
        losses = torch.empty(rows, device=logits.device)
        row_loss_kernel[(rows,)](logits, labels, losses, classes, BLOCK=triton.next_power_of_2(classes))
        result = torch.empty((), device=logits.device)
        mean_kernel[(1,)](losses, result, rows, BLOCK=triton.next_power_of_2(rows))
        return result
