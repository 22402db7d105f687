"""Sets the clock that the referee measures with, its pace or its date.

row: provoking disturbance: setting the clock; scheduler priority
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
    "clock_settime": (227, 0, (ctypes.c_int64 * 2)(10**9, 0)),
    "settimeofday": (164, (ctypes.c_int64 * 2)(10**9, 0), None),
    "adjtimex": (159, (ctypes.c_int64 * 26)(0x4000, 0, 9000)),
    "clock_adjtime": (305, 0, (ctypes.c_int64 * 26)(0x4000, 0, 9000)),
}
if not (found := open_calls(CALLS)):
    raise RuntimeError("contained: the clock is not to be set")
print(found, flush=True)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
