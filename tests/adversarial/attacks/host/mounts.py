"""Mounts, unmounts, remounts writable, and changes its root.

row: mounting
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
    "mount": (165, b"none", b"/tmp", b"tmpfs", 0, None),
    "bind": (165, b"/usr", b"/tmp", None, 0x1000, None),
    "remount": (165, None, b"/", None, 0x1020, None),
    "umount": (166, b"/proc", 2),
    "pivot_root": (155, b"/tmp", b"/tmp"),
    "chroot": (161, b"/tmp"),
    "fsopen": (430, b"tmpfs", 0),
    "fspick": (433, -100, b"/", 0),
    "open_tree": (428, -100, b"/", 1),
    "move_mount": (429, -100, b"/tmp", -100, b"/job", 0),
    "mount_setattr": (442, -100, b"/", 0, (ctypes.c_uint64 * 4)(0, 1, 0, 0), 32),
    "mknod": (133, b"/tmp/disk", 0o60666, 0x800),
}
if not (found := open_calls(CALLS)):
    raise RuntimeError("contained: no mount can be changed")
print(found, flush=True)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
