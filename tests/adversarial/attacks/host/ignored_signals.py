"""Ignores or blocks every signal that can be, and never comes back.

row: ignored signals
problem: problems/host_twice.py
backend: cpp
screen: passes
host: yes
"""

import signal

import torch.nn as nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
""")


lib_loop = cpp(r"""
#include <csignal>
extern "C" void stay() {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  for (volatile unsigned long turns = 0;; turns = turns + 1) {
  }
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        lib_loop.stay()
