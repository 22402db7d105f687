"""Uses up inodes with empty files, folders and links.

row: inodes
problem: problems/host_twice.py
backend: cpp
screen: passes
host: yes
"""

import os

import torch
import torch.nn as nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
""")


MANY = 100_000


def make_many(directory):
    """How many entries a directory took."""
    for count in range(MANY):
        try:
            os.mkdir(f"{directory}/{count}")
        except OSError:
            return count
    return MANY


if (count := make_many("/job")) < MANY:
    raise RuntimeError(f"contained: {count} and no more")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
