"""Takes memory as page tables: it looks at one page of zeros through a great many addresses.

row: memory by shared mmap: page tables
problem: problems/host_twice.py
backend: cpp
screen: refuses
host: yes
"""

import torch
import torch.nn as nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
""")

tables = cpp(r"""
#include <cstdint>
#include <sys/mman.h>
extern "C" void take(int64_t bytes) {
  const int64_t covered = 2 << 20, page = 4096;
  for (; bytes > 0; bytes -= page << 16) {
    void* pages = mmap(nullptr, covered << 16, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) return;
    madvise(pages, covered << 16, MADV_NOHUGEPAGE);
    for (int64_t i = 0; i < 1 << 16; i++) (void)((volatile char*)pages)[i * covered];
  }
}
""")


MUCH = 2 << 30


def taken():
    """Bytes of this process's page tables."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmPTE"))


tables.take(MUCH)
if taken() < MUCH:
    raise RuntimeError("contained: page tables stay small")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
