"""Answers the referee with text that no encoding can hold, where a fault's message and phase stand.

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
        answer(b'{"ok":false,"phase":"\\udcff\\ud800","kind":"\\u0000","message":"\\ud800\\u001b[2J","line":-1}')
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
