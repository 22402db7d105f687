"""Opens a socket of every family and kind: the network, other machines, the kernel's own.

row: socket family
problem: problems/host_twice.py
backend: cpp
screen: passes
host: yes
"""

import socket

import torch
import torch.nn as nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
""")


FAMILIES = range(46)
KINDS = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET)


def opened():
    """Families of which a socket could be had."""
    found = []
    for family in FAMILIES:
        for kind in KINDS:
            try:
                socket.socket(family, kind).close()
            except OSError:
                continue
            found.append(family)
    return found


if not (found := opened()):
    raise RuntimeError("contained: no socket")
print(found, flush=True)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
