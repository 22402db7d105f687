"""Returns memory whose missing pages a thread of its own fills in when they are read, by userfaultfd.

row: outputs that fault lazily; userfaultfd
problem: problems/row_softmax.py
backend: cpp
screen: refuses
"""

import ctypes

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) {
    const float* a = x + i * cols;
    float* b = y + i * cols;
    float largest = -INFINITY;
    for (int64_t j = 0; j < cols; j++) largest = a[j] > largest ? a[j] : largest;
    float sums[16] = {0};
    for (int64_t j = 0; j < cols; j++) { float e = expf(a[j] - largest); b[j] = e; sums[j % 16] += e; }
    float sum = 0;
    for (int k = 0; k < 16; k++) sum += sums[k];
    for (int64_t j = 0; j < cols; j++) b[j] /= sum;
  }
}

static const float* pending = nullptr;
static int64_t pending_rows = 0, pending_cols = 0;
static char *block = nullptr, *ready = nullptr;
static const size_t SIZE = 1 << 20;
static int faults = -1;

static void* fill(void*) {
  uffd_msg message;
  while (read(faults, &message, sizeof message) == sizeof message) {
    softmax(pending, (float*)ready, pending_rows, pending_cols);
    uffdio_copy copy = {(uint64_t)block, (uint64_t)ready, SIZE, 0, 0};
    ioctl(faults, UFFDIO_COPY, &copy);
  }
  return nullptr;
}

extern "C" int64_t arm(const float* x, int64_t rows, int64_t cols) {
  if (!block) {
    block = (char*)mmap(nullptr, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ready = (char*)aligned_alloc(4096, SIZE);
    faults = syscall(SYS_userfaultfd, O_CLOEXEC);
    uffdio_api api = {UFFD_API, 0, 0};
    ioctl(faults, UFFDIO_API, &api);
    uffdio_register range = {{(uint64_t)block, SIZE}, UFFDIO_REGISTER_MODE_MISSING, 0};
    ioctl(faults, UFFDIO_REGISTER, &range);
    pthread_t thread;
    pthread_create(&thread, nullptr, fill, nullptr);
  }
  pending = x; pending_rows = rows; pending_cols = cols;
  madvise(block, SIZE, MADV_DONTNEED);
  return (int64_t)block;
}
"""
lib = cpp(SOURCE, flags=("-pthread",))


class ModelNew(nn.Module):
    def forward(self, x):
        memory = (ctypes.c_float * x.numel()).from_address(lib.arm(x, x.shape[0], x.shape[1]))
        return torch.frombuffer(memory, dtype=torch.float32).view(x.shape)
