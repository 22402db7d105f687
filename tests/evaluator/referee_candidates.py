"""Hand-written candidates for the softmax problem: one that is right, and the ways in which others are not."""

from __future__ import annotations

KERNEL = r"""
#include <cmath>
#include <cstdint>
extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) {
    const float* a = x + i * cols;
    float* b = y + i * cols;
    float largest = -INFINITY;
    for (int64_t j = 0; j < cols; j++) largest = a[j] > largest ? a[j] : largest;
    float sums[16] = {0};
    for (int64_t j = 0; j < cols; j++) { float e = expf(a[j] - largest); b[j] = e; sums[j % 16] += e; }
    float sum = 0;
    for (int k = 0; k < 16; k++) sum += sums[k];
    for (int64_t j = 0; j < cols; j++) b[j] /= sum;
  }
}
"""


def candidate(forward: str = "", *, kernel: str = KERNEL, top: str = "", flags: str = "()") -> str:
    """A candidate file around ``kernel``; ``forward`` runs on ``y`` after the kernel, ``top`` at import."""
    body = "\n".join(" " * 8 + line for line in forward.splitlines())
    return f"""
import torch
import torch.nn as nn
from kernelwright.inline import cpp

SOURCE = r'''{kernel}'''
lib = cpp(SOURCE, flags={flags})
{top}


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.softmax(x, y, x.shape[0], x.shape[1])
{body}
        return y
"""


RIGHT = candidate()

TRITON = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * cols + at, mask=at < cols, other=-float("inf"))
    values = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * cols + at, values / tl.sum(values, 0)SCALE, mask=at < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.cuda()
        y = torch.empty_like(x)
        kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
"""

_ELEMENTWISE = '''
import torch
from torch import nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
extern "C" void elementwise(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = EXPRESSION;
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.elementwise(x, y, x.numel())
        return RETURNED
'''


def elementwise(expression: str, returned: str = "y") -> str:
    """A candidate whose kernel computes each ``y[i]`` by a C++ expression of ``x[i]``, and what it returns."""
    return _ELEMENTWISE.replace("EXPRESSION", expression).replace("RETURNED", returned)
