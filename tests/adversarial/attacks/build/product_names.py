"""Names its extension by a path that leads out of the builder's folder, or into another candidate's.

row: symlink and FIFO tricks; poisoned caches and warm workers: the product's path
problem: problems/host_twice.py
backend: cpp
screen: passes
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
""")


PLAIN = 'extern "C" int nothing() { return 0; }\n'
NAMES = (
    "../../product",
    "/etc/cron.d/job",
    "a b",
    "product.so",
    "",
    "x;id",
    "$(id)",
    "-fplugin=x",
    "a\0b",
    "a\nb",
    "\ud800",
)


def taken(name):
    """Whether an extension of that name was built."""
    try:
        load_inline(name, PLAIN, no_implicit_headers=True)
    except (RuntimeError, ValueError):
        return False
    return True


if not any(taken(name) for name in NAMES):
    raise RuntimeError("contained: a name is no path")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
