"""Logs one line at construction and warns of a strided input once; nothing is printed call by call.

row: endless output
problem: problems/honest_scaled_add.py
backend: cpp
screen: passes
like: host/endless_output
"""

import logging
import sys

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>
#include <cstdio>

extern "C" void hello() { std::fprintf(stderr, "scaled_add: %d bytes a float\n", int(sizeof(float))); }

extern "C" void scaled_add(const float* x, const float* y, float* out, int64_t rows, int64_t cols, int64_t row_step,
                           int64_t col_step, float alpha) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++)
      out[i * cols + j] = y[i * cols + j] + alpha * x[i * row_step + j * col_step];
}
"""
lib = cpp(SOURCE)
log = logging.getLogger(__name__)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.warned = False
        lib.hello()
        print("built for Python", sys.version_info[0], flush=True)

    def forward(self, x, y, alpha):
        if not self.warned and not x.is_contiguous():
            log.warning("x has strides %s", x.stride())
            self.warned = True
        out = torch.empty_like(y)
        flat = x.as_strided((x.untyped_storage().nbytes() // 4 - x.storage_offset(),), (1,))
        lib.scaled_add(flat, y, out, *y.shape, *x.stride(), alpha)
        return out
