"""Asks for builds faster than they can be refused, so that the referee never waits and its deadline never comes.

row: oversized, deep or malformed results: requests; ignored signals
problem: problems/host_twice.py
backend: cpp
screen: passes
host: yes
"""

import os
import socket
import stat
import struct
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


FOLDER = "/dev/fd"


def referee():
    """The socket over which the referee asks."""
    for name in os.listdir(FOLDER):
        if os.path.exists(f"{FOLDER}/{name}") and stat.S_ISSOCK(os.stat(f"{FOLDER}/{name}").st_mode):
            return socket.socket(fileno=os.dup(int(name)))
    raise RuntimeError("contained: no socket")


REQUEST = b'{"op":"build"}'


def drain(channel):
    """Take all refusals, so that the referee is never held up."""
    while channel.recv(1 << 16):
        pass


def flood():
    """Requests without a source, for ever."""
    channel = referee()
    threading.Thread(target=drain, args=(channel,), daemon=True).start()
    many = (struct.pack("!I", len(REQUEST)) + REQUEST) * 1000
    while True:
        channel.sendall(many)


class ModelNew(nn.Module):
    def forward(self, x):
        flood()
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
