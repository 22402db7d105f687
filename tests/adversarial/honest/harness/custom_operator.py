"""Registers its kernel as an operator of torch's library, with a shape function, and calls it by that name.

row: monkeypatched torch
problem: problems/honest_scaled_add.py
backend: cpp
screen: passes
like: harness/reference_operator_patched
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void scaled_add(const float* x, const float* y, float* out, int64_t n, float alpha) {
  for (int64_t i = 0; i < n; i++) out[i] = y[i] + alpha * x[i];
}
"""
# Not vectorised, since it would be over too soon: the way through torch's dispatcher takes over 90% of the time then.
lib = cpp(SOURCE, flags=("-O1",))


@torch.library.custom_op("honest::scaled_add", mutates_args=())
def scaled_add(x: torch.Tensor, y: torch.Tensor, alpha: float) -> torch.Tensor:
    out = torch.empty_like(y)
    lib.scaled_add(x.contiguous(), y, out, y.numel(), alpha)
    return out


@scaled_add.register_fake
def _(x, y, alpha):
    return torch.empty_like(y)


scaled_add(torch.zeros(1), torch.zeros(1), 1.0)  # the first call imports what torch has for such operators


class ModelNew(nn.Module):
    def forward(self, x, y, alpha):
        return torch.ops.honest.scaled_add(x, y.contiguous(), alpha)
