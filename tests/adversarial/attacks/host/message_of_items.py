"""Answers the referee with a message of sixty thousand empty lists and numbers of thousands of digits.

row: oversized, deep or malformed results
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
        answer(b'{"ok":false,"line":' + b"9" * 4000 + b',"message":[' + b"[]," * 20_000 + b"1e999]}")
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
