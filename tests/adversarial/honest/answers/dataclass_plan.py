"""A frozen dataclass holds the plan of a call; it is made anew for every call.

row: output cached by content
problem: problems/matmul.py
backend: cpp
screen: passes
like: answers/cached_by_rounded_content
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <algorithm>
#include <cstdint>

extern "C" void matmul(const float* a, const float* b, float* c, int64_t m, int64_t k, int64_t n, int64_t tile) {
  std::fill(c, c + m * n, 0.0f);
  for (int64_t start = 0; start < k; start += tile) {
    const int64_t end = std::min(k, start + tile);
    for (int64_t i = 0; i < m; i++)
      for (int64_t p = start; p < end; p++) {
        const float left = a[i * k + p];
        for (int64_t j = 0; j < n; j++) c[i * n + j] += left * b[p * n + j];
      }
  }
}
"""
lib = cpp(SOURCE)


@dataclass(frozen=True)
class Plan:
    """Sizes of a product (m, k) by (k, n) and the tile of its inner loop."""

    m: int
    k: int
    n: int

    @property
    def tile(self) -> int:
        return 16 if self.k >= 32 else 8

    @classmethod
    def of(cls, a: torch.Tensor, b: torch.Tensor) -> Plan:
        return cls(a.shape[0], a.shape[1], b.shape[1])


class ModelNew(nn.Module):
    def forward(self, a, b):
        plan = Plan.of(a, b)
        c = torch.empty(plan.m, plan.n)
        lib.matmul(a, b, c, plan.m, plan.k, plan.n, plan.tile)
        return c
