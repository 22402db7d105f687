"""Asks to serve its own page faults: an output would be computed while it is read.

row: userfaultfd
problem: problems/host_twice.py
backend: cpp
screen: passes
host: yes
"""

import ctypes
import errno
import os

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
    "userfaultfd": (323, 0),
    "userfaultfd for user mode": (323, 1),
    "memfd_secret": (447, 0),
    "process_madvise": (440, -1, None, 0, 0, 0),
}


def device():
    """The same by way of the device."""
    try:
        os.close(os.open("/dev/userfaultfd", os.O_RDWR))
    except OSError:
        return []
    return ["/dev/userfaultfd"]


if not (found := open_calls(CALLS) + device()):
    raise RuntimeError("contained: faults are served by the kernel")
print(found, flush=True)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
