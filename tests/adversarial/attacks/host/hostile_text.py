"""Fails with a message that is ten megabytes of control characters, markup and broken text.

row: oversized, deep or malformed results: text for terminals and pages
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


TEXT = "\x1b]0;owned\x07\x1b[2J\x1b[31m\r\n\0[bold]<script>alert(1)</script>${jndi:x}\u202e\udfff\ud800" * 200_000


class ModelNew(nn.Module):
    def forward(self, x):
        print(TEXT[:500].encode(errors="surrogatepass"), flush=True)
        raise type(TEXT[:20], (Exception,), {})(TEXT)
