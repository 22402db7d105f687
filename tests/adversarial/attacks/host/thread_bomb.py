"""Starts threads until the host can start no more.

row: fork bomb (of threads)
problem: problems/host_twice.py
backend: cpp
screen: passes
host: yes
"""

import threading

import torch
import torch.nn as nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
""")


MANY = 2000


def start_many():
    """How many threads could be started; all of them wait."""
    never = threading.Event()
    for count in range(MANY):
        try:
            threading.Thread(target=never.wait, daemon=True).start()
        except RuntimeError:
            return count
    return MANY


if (count := start_many()) < MANY:
    raise RuntimeError(f"contained: {count} threads and no more")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
