"""Claims the right shape and dtype, with strides, sizes and places that change while the referee reads.

row: oversized, deep or malformed results: claims
problem: problems/host_twice.py
backend: cpp
screen: refuses
host: yes
"""

import ctypes
import random
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


ROW, STRIDES = 16, 4 + 8
EXTREMES = (0, 1, -1, 3, 128, 1 << 31, 1 << 40, (1 << 61) - 1, (1 << 63) - 1, -(1 << 63))


def answer_page():
    """Where this process tells the referee of its outputs."""
    with open("/proc/self/maps") as maps:
        return next(int(line.split("-")[0], 16) for line in maps if "memfd:answer" in line)


def scribble(words, choose):
    """Change strides, and now and then the output's size or place, for ever."""
    while True:
        words[ROW + STRIDES + choose.randrange(2)] = choose.choice(EXTREMES)
        if choose.random() < 0.05:
            words[ROW + choose.randrange(2)] += choose.choice((-64, 64, 4096, 1 << 46))


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        words = (ctypes.c_int64 * 64).from_address(answer_page())
        threading.Thread(target=scribble, args=(words, random.Random(1)), daemon=True).start()

    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
