"""Counts events of the processor and of other processes.

row: perf_event_open
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
    "own": (298, (ctypes.c_uint32 * 32)(0, 128), 0, -1, -1, 0),
    "of a processor": (298, (ctypes.c_uint32 * 32)(0, 128), -1, 0, -1, 0),
    "of process 1": (298, (ctypes.c_uint32 * 32)(1, 128), 1, -1, -1, 0),
    "lookup_dcookie": (212, 0, None, 0),
}
if not (found := open_calls(CALLS)):
    raise RuntimeError("contained: no counters")
print(found, flush=True)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
