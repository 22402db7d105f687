"""Raises its own limits and lowers those of others.

row: memory by heap: raising limits
problem: problems/host_twice.py
backend: cpp
screen: passes
host: yes
"""

import os
import resource

import torch
import torch.nn as nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
""")


NAMES = [name for name in dir(resource) if name.startswith("RLIMIT_")]


def raised():
    """Limits that could be raised above their hard value, or changed for process 1."""
    found = []
    for name in NAMES:
        number = getattr(resource, name)
        soft, hard = resource.getrlimit(number)
        if hard == resource.RLIM_INFINITY:
            continue
        for wanted in (hard + 1, resource.RLIM_INFINITY):
            try:
                resource.setrlimit(number, (soft, wanted))
                found.append(name)
            except (OSError, ValueError):
                pass
    for process in {1, 2, 3, os.getppid()} - {0, os.getpid()}:
        try:
            resource.prlimit(process, resource.RLIMIT_NOFILE, (4, 4))
            found.append(f"of process {process}")
        except OSError:
            pass
    return found


if not (found := raised()):
    raise RuntimeError("contained: no limit can be raised")
print(found, flush=True)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
