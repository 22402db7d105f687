"""Answers the referee that its output has a wrong shape, and leaves the reason empty.

row: oversized, deep or malformed results; forged result messages
problem: problems/host_twice.py
backend: cpp
screen: passes
host: yes
"""

import os
import socket
import stat
import struct

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


def answer(body):
    """One message in the referee's own framing."""
    referee().sendall(struct.pack("!I", len(body)) + body)


class ModelNew(nn.Module):
    def forward(self, x):
        answer(b'{"ok":false,"phase":"shape","kind":"","message":""}')
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
