"""Stops itself within a call, so that the clock or the next thaw finds it in a state of its own making.

row: running in the twin's turn; ignored signals
problem: problems/host_twice.py
backend: cpp
screen: passes
host: yes
"""

import torch.nn as nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
""")


lib_stop = cpp(r"""
#include <csignal>
extern "C" void stop() {
  raise(SIGSTOP);
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        lib_stop.stop()
        raise RuntimeError("contained: it cannot stop itself")
