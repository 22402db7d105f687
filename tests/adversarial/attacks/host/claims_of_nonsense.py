"""Claims outputs of every nonsensical size, shape, stride and place while the referee reads them.

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


WORDS = 16 + 16 * 20
EXTREMES = (0, 1, -1, 7, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63), 64, 1024, 0x7FFFFFFFF000)


def answer_page():
    """Where this process tells the referee of its outputs."""
    with open("/proc/self/maps") as maps:
        return next(int(line.split("-")[0], 16) for line in maps if "memfd:answer" in line)


def scribble(words, choose):
    """Write nonsense over every word but the nonce, for ever."""
    while True:
        words[choose.randrange(8, WORDS)] = choose.choice(EXTREMES)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        words = (ctypes.c_int64 * WORDS).from_address(answer_page())
        threading.Thread(target=scribble, args=(words, random.Random(1)), daemon=True).start()

    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
