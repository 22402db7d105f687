"""The kernel calls back into Python, where torch does the work: on the stack, all of it happens inside the kernel.

row: torch operators behind a decoy kernel
problem: problems/row_softmax.py
backend: cpp
screen: passes
"""

import ctypes

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
extern "C" void softmax(void* work) { ((void (*)())work)(); }
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.job = None

        def work():
            x, y = self.job
            torch.softmax(x, dim=-1, out=y)

        self.callback = ctypes.CFUNCTYPE(None)(work)

    def forward(self, x):
        y = torch.empty_like(x)
        self.job = x, y
        lib.softmax(ctypes.cast(self.callback, ctypes.c_void_p))
        return y
