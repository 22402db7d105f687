"""Opens, traces and reads the memory of every process that it can name: the referee, the reference, process 1.

row: ptrace and /proc/*/mem
problem: problems/host_twice.py
backend: cpp
screen: refuses
host: yes
"""

import ctypes
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
SEIZE = 0x4206
PIDFD_OPEN, PIDFD_GETFD, KCMP = 434, 438, 312


class Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def targets():
    """Numbers of other processes: those in sight, and those that are always there."""
    seen = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    return sorted((seen | {1, 2, os.getppid()} | set(range(2, 400))) - {os.getpid(), 0})


def reads(pid):
    """Ways in which a process could be looked into."""
    here = ctypes.create_string_buffer(8)
    local = Vector(ctypes.addressof(here), 8)
    remote = Vector(0x400000, 8)
    found = []
    for name in ("mem", "environ", "maps", "auxv", "fd/0"):
        try:
            file = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_NONBLOCK)
            found += [name] if name in ("mem", "fd/0") or os.read(file, 1) else []
            os.close(file)
        except OSError:
            continue
    if libc.ptrace(SEIZE, pid, None, None) == 0:
        found.append("ptrace")
    if libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) >= 0:
        found.append("process_vm_readv")
    if (file := libc.syscall(PIDFD_OPEN, pid, 0)) >= 0:
        found.append("pidfd_open")
        if libc.syscall(PIDFD_GETFD, file, 0, 0) >= 0:
            found.append("pidfd_getfd")
    if libc.syscall(KCMP, pid, os.getpid(), 0, 0, 0) >= 0:
        found.append("kcmp")
    return found


found = {pid: ways for pid in targets() if (ways := reads(pid))}
if not found:
    raise RuntimeError("contained: no other process can be looked into")
print(found, flush=True)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
