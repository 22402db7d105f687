"""Keeps a thread within one long call into the kernel, so that it cannot be stopped when the reference has its turn.

row: running in the twin's turn; ignored signals
problem: problems/host_twice.py
backend: cpp
screen: passes
host: yes
"""

import torch
import torch.nn as nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
static volatile bool staying = false;
static void* stay(void*) {
  const size_t size = 300UL << 30;
  for (;;) {
    void* pages = mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) return nullptr;
    madvise(pages, size, MADV_NOHUGEPAGE);
    staying = true;
    madvise(pages, size, 22);  // MADV_POPULATE_READ: a hundred million faults, all of the page of zeros
    munmap(pages, size);
  }
}
extern "C" void enter() {
  pthread_t thread;
  pthread_create(&thread, nullptr, stay, nullptr);
  while (!staying) usleep(1000);
  usleep(20000);
}
""")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 150:
            lib.enter()
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
