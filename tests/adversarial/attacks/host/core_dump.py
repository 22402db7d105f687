"""Crashes with a core as large as it may be, for the host's crash handler.

row: symlink and FIFO tricks: core dumps; filling every mount
problem: problems/host_twice.py
backend: cpp
screen: passes
host: yes
"""

import resource

import torch.nn as nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
""")


lib_crash = cpp(
    r"""
extern "C" void crash(int64_t where) { *(volatile char*)where = 1; }
""".replace("extern", "#include <cstdint>\nextern")
)


class ModelNew(nn.Module):
    def forward(self, x):
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
        held = b"x" * (64 << 20)
        lib_crash.crash(len(held) - (64 << 20))
        return x
