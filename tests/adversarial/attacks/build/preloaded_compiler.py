"""Sets the variables by which compilers, linkers and loaders find foreign files, before it asks for a build.

row: LD_PRELOAD
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


VARIABLES = (
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "GCC_EXEC_PREFIX",
    "COMPILER_PATH",
    "LIBRARY_PATH",
    "CPATH",
    "TMPDIR",
)
VARIABLES += (
    "CPLUS_INCLUDE_PATH",
    "C_INCLUDE_PATH",
    "PATH",
    "CXX",
    "CC",
    "CXXFLAGS",
    "GCC_COLORS",
    "DEPENDENCIES_OUTPUT",
)
os.makedirs("/job/evil", exist_ok=True)
for name in ("evil.h", "g++", "as", "ld", "cc1plus", "libm.so"):
    with open(f"/job/evil/{name}", "w") as file:
        file.write("#!/bin/sh\nexit 0\n")
    os.chmod(f"/job/evil/{name}", 0o755)
os.environ.update(dict.fromkeys(VARIABLES, "/job/evil"))
probe = cpp(r"""
extern "C" int found() {
#if __has_include("evil.h")
  return 1;
#else
  return 0;
#endif
}
""")
if not probe.found():
    raise RuntimeError("contained: the builder has its own environment")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
