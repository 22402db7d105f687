"""Makes files of terabytes that hold nothing, for whoever copies or reads them.

row: sparse terabytes
problem: problems/host_twice.py
backend: cpp
screen: passes
host: yes
"""

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


TERABYTE = 1 << 40


def grown():
    """Where a file could be made that large."""
    found = []
    files = {name: os.open(f"{name}/sparse", os.O_CREAT | os.O_RDWR) for name in ("/job", "/tmp", "/dev/shm")}
    files["memory"] = os.memfd_create("sparse")
    for name, file in files.items():
        for grow in (
            os.ftruncate,
            lambda file, size: os.pwrite(file, b"x", size),
            lambda f, n: os.posix_fallocate(f, 0, n),
        ):
            try:
                grow(file, TERABYTE)
            except OSError:
                continue
            found.append(name)
    return found


if not (found := grown()):
    raise RuntimeError("contained: files stay small")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
