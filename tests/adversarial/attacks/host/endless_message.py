"""Announces a message of four gigabytes and lets it trickle.

row: oversized, deep or malformed results
problem: problems/host_twice.py
backend: cpp
screen: passes
host: yes
"""

import contextlib
import os
import socket
import stat

import torch
import torch.nn as nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
""")


FOLDER = "/dev/fd"


def referee():
    """The socket over which the referee asks."""
    for name in os.listdir(FOLDER):
        if os.path.exists(f"{FOLDER}/{name}") and stat.S_ISSOCK(os.stat(f"{FOLDER}/{name}").st_mode):
            return socket.socket(fileno=os.dup(int(name)))
    raise RuntimeError("contained: no socket")


def trickle():
    """A header, and then bytes without an end."""
    channel = referee()
    with contextlib.suppress(OSError):
        channel.sendall(b"\xff\xff\xff\xff")
        while True:
            channel.sendall(b"x" * 4096)


class ModelNew(nn.Module):
    def forward(self, x):
        trickle()
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
