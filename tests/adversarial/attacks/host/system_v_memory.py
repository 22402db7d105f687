"""Leaves shared memory, queues and semaphores behind that outlive the process.

row: memory by shared mmap, of System V; daemons
problem: problems/host_twice.py
backend: cpp
screen: passes
host: yes
"""

import ctypes
import errno

import torch
import torch.nn as nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
""")


libc = ctypes.CDLL(None, use_errno=True)
REFUSED = (errno.EPERM, errno.EACCES, errno.ENOSYS)


def open_calls(calls):
    """The system calls that are not refused outright: {name: (number, arguments)} in, names out."""
    found = []
    for name, (number, *arguments) in calls.items():
        if libc.syscall(number, *arguments) >= 0 or ctypes.get_errno() not in REFUSED:
            found.append(name)
    return found


CALLS = {
    "shmget": (29, 0x6B77, 1 << 20, 0o1666),
    "msgget": (68, 0x6B77, 0o1666),
    "semget": (64, 0x6B77, 1, 0o1666),
    "mq_open": (240, b"kept", 0o102, 0o666, None),
}
if not (found := open_calls(CALLS)):
    raise RuntimeError("contained: nothing outlives it")
print(found, flush=True)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
