"""Gives load_inline options for the linker, folders of headers, and a place for its product.

row: linker response files; symlink and FIFO tricks: the product's path
problem: problems/host_twice.py
backend: cpp
screen: passes
"""

import functools

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
build = functools.partial(load_inline, "product", PLAIN)


def taken(**options):
    """Whether an extension was built with these arguments."""
    try:
        build(**options)
    except RuntimeError:
        return False
    return True


if not any(
    (
        taken(extra_ldflags=["-Wl,--version-script=/etc/shadow"]),
        taken(extra_ldflags=["@/job/response"]),
        taken(extra_ldflags=["-Wl,-rpath,/job", "-L/job"]),
        taken(extra_cflags=["-fplugin=/job/plugin.so"]),
        taken(extra_cflags=["-o", "/in/product.so"]),
        taken(extra_include_paths=["/etc"]),
        taken(is_python_module=False),
        taken(with_cuda=True),
        taken(cuda_sources="__global__ void nothing() {}"),
    )
):
    raise RuntimeError("contained: no such option")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
