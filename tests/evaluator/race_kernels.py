"""Bodies of ``void f(const float* x, float* y, int64_t n)`` with OpenMP: right ones, and races."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

HEAD = """
#include <omp.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>
"""


class Kernel(NamedTuple):
    """One body; ``racy`` holds words of the finding that it must bring, and is empty where it is right."""

    body: str
    expected: Any = None  # of x, what y begins with
    top: str = ""
    n: int = 1000
    racy: str = ""

    @property
    def source(self) -> str:
        """The whole file."""
        declared = 'extern "C" void f(const float* x, float* y, int64_t n)'
        return f"{HEAD}{self.top}\n{declared} {{\n{self.body}\n}}\n"


def doubled(x):
    return 2 * x


def total(x):
    return [np.sum(x, dtype=np.float64)]


RIGHT = {
    "parallel for": Kernel("#pragma omp parallel for\nfor (int64_t i = 0; i < n; i++) y[i] = 2 * x[i];", doubled),
    "simd alone": Kernel(
        """
#pragma omp parallel for simd schedule(static)
for (int64_t i = 0; i < n; i++) y[i] = 2 * x[i];
""",
        doubled,
    ),
    "reductions": Kernel(
        """
double s = 0; float m = 0;
#pragma omp parallel for reduction(+ : s) reduction(max : m)
for (int64_t i = 0; i < n; i++) { s += x[i]; m = std::fmax(m, x[i]); }
y[0] = s; y[1] = m;
""",
        lambda x: [np.sum(x, dtype=np.float64), x.max()],
    ),
    "array reduction": Kernel(
        """
#pragma omp parallel for reduction(+ : y[ : 8])
for (int64_t i = 0; i < n; i++) y[i % 8] += x[i];
""",
        lambda x: x.reshape(-1, 8).sum(0),
    ),
    "critical": Kernel(
        """
double s = 0;
#pragma omp parallel
{
  double own = 0;
#pragma omp for nowait
  for (int64_t i = 0; i < n; i++) own += x[i];
#pragma omp critical
  s += own;
}
y[0] = s;
""",
        total,
    ),
    "atomic": Kernel(
        """
double s = 0;
#pragma omp parallel for
for (int64_t i = 0; i < n; i++) {
#pragma omp atomic
  s += x[i];
}
y[0] = s;
""",
        total,
    ),
    "lock": Kernel(
        """
omp_lock_t lock; omp_init_lock(&lock); double s = 0;
#pragma omp parallel for
for (int64_t i = 0; i < n; i++) { omp_set_lock(&lock); s += x[i]; omp_unset_lock(&lock); }
omp_destroy_lock(&lock); y[0] = s;
""",
        total,
    ),
    "mutex": Kernel(
        """
std::mutex lock; double s = 0;
#pragma omp parallel for
for (int64_t i = 0; i < n; i++) { std::lock_guard<std::mutex> held(lock); s += x[i]; }
y[0] = s;
""",
        total,
    ),
    "private arrays": Kernel(
        """
#pragma omp parallel for schedule(dynamic)
for (int64_t i = 0; i < n / 8; i++) {
  float own[8];
  for (int k = 0; k < 8; k++) own[k] = x[8 * i + k];
  for (int k = 0; k < 8; k++) y[8 * i + k] = 2 * own[k];
}
""",
        doubled,
    ),
    "allocated scratch": Kernel(
        """
#pragma omp parallel for schedule(dynamic)
for (int64_t i = 0; i < n / 8; i++) {
  std::vector<float> own(x + 8 * i, x + 8 * i + 8);
  float* more = static_cast<float*>(std::malloc(32));
  for (int k = 0; k < 8; k++) more[k] = own[k];
  for (int k = 0; k < 8; k++) y[8 * i + k] = 2 * more[k];
  std::free(more);
}
""",
        doubled,
    ),
    "thread-local scratch": Kernel(
        """
#pragma omp parallel for schedule(dynamic, 3)
for (int64_t i = 0; i < n; i++) { scratch.assign(4, x[i]); y[i] = scratch[0] + scratch[3]; }
""",
        doubled,
        top="static thread_local std::vector<float> scratch;",
    ),
    "scratch by thread number": Kernel(
        """
std::vector<float> all(omp_get_max_threads());
#pragma omp parallel for
for (int64_t i = 0; i < n; i++) { float& own = all[omp_get_thread_num()]; own = x[i]; y[i] = 2 * own; }
""",
        doubled,
    ),
    "function-local static": Kernel(
        """
#pragma omp parallel for schedule(dynamic)
for (int64_t i = 0; i < n; i++) y[i] = x[i] * table()[i % 4];
""",
        doubled,
        top="static const float* table() { static const std::vector<float> made(4, 2.0f); return made.data(); }",
    ),
    "collapse": Kernel(
        """
#pragma omp parallel for collapse(2) schedule(guided)
for (uint64_t i = 0; i < 10; i++)
  for (uint64_t j = 0; j < uint64_t(n) / 10; j++) y[i * (n / 10) + j] = 2 * x[i * (n / 10) + j];
""",
        doubled,
    ),
    "backwards in chunks": Kernel(
        """
#pragma omp parallel for schedule(dynamic, 7)
for (int64_t i = n - 1; i >= 0; i -= 1) y[i] = 2 * x[i];
""",
        doubled,
    ),
    "runtime schedule": Kernel(
        "#pragma omp parallel for schedule(runtime)\nfor (int64_t i = 0; i < n; i++) y[i] = 2 * x[i];", doubled
    ),
    "barrier and single": Kernel(
        """
float factor = 0; double s = 0;
#pragma omp parallel
{
#pragma omp single
  factor = 2;
#pragma omp for
  for (int64_t i = 0; i < n; i++) y[i] = factor * x[i];
  float before = y[n - 1 - omp_get_thread_num()];
#pragma omp barrier
#pragma omp master
  y[n - 1] = before;
}
""",
        doubled,
    ),
    "copyprivate": Kernel(
        """
#pragma omp parallel
{
  float factor;
#pragma omp single copyprivate(factor)
  factor = 2;
#pragma omp for nowait
  for (int64_t i = 0; i < n; i++) y[i] = factor * x[i];
}
""",
        doubled,
    ),
    "sections": Kernel(
        """
#pragma omp parallel sections
{
#pragma omp section
  for (int64_t i = 0; i < n / 2; i++) y[i] = 2 * x[i];
#pragma omp section
  for (int64_t i = n / 2; i < n; i++) y[i] = 2 * x[i];
}
""",
        doubled,
    ),
    "ordered": Kernel(
        """
double s = 0;
#pragma omp parallel for ordered schedule(dynamic, 2)
for (int64_t i = 0; i < n; i++) {
  float twice = 2 * x[i];
#pragma omp ordered
  { s += twice; y[i] = s; }
}
""",
        lambda x: np.cumsum(2 * x.astype(np.float64)),
        n=100,
    ),
    "tasks": Kernel(
        """
double s = 0;
#pragma omp parallel
#pragma omp single
{
  for (int64_t i = 0; i < n; i += 100) {
#pragma omp task firstprivate(i)
    {
      float own[100];
      for (int k = 0; k < 100; k++) own[k] = x[i + k];
      for (int k = 0; k < 100; k++) y[i + k] = own[k];
    }
  }
#pragma omp taskwait
  for (int64_t i = 0; i < n; i++) s += y[i];
  y[0] = s;
}
""",
        total,
    ),
    "tasks that depend": Kernel(
        """
float a = 0, b = 0;
#pragma omp parallel
#pragma omp single
{
#pragma omp task depend(out : a)
  a = x[0];
#pragma omp task depend(in : a) depend(out : b)
  b = 2 * a;
#pragma omp task depend(in : b)
  y[0] = b;
}
""",
        lambda x: [2 * x[0]],
    ),
    "tasks of tasks": Kernel(
        """
#pragma omp parallel
#pragma omp single
sum(x, n, y);
""",
        total,
        top="""
static void sum(const float* x, int64_t n, float* out) {
  if (n <= 50) { double s = 0; for (int64_t i = 0; i < n; i++) s += x[i]; *out = s; return; }
  float left, right;
#pragma omp task shared(left)
  sum(x, n / 2, &left);
#pragma omp task shared(right)
  sum(x + n / 2, n - n / 2, &right);
#pragma omp taskwait
  *out = left + right;
}
""",
    ),
    "loop of tasks": Kernel(
        """
#pragma omp parallel
#pragma omp single
#pragma omp taskloop grainsize(50)
for (int64_t i = 0; i < n; i++) y[i] = 2 * x[i];
""",
        doubled,
    ),
    "region inside of a region": Kernel(
        """
#pragma omp parallel for
for (int64_t i = 0; i < n / 8; i++) {
#pragma omp parallel for
  for (int k = 0; k < 8; k++) y[8 * i + k] = 2 * x[8 * i + k];
}
""",
        doubled,
    ),
    "phases": Kernel(
        """
for (int64_t step = 0; step < 2; step++) {
  std::vector<float> part(n);
#pragma omp parallel for
  for (int64_t i = 0; i < n; i++) part[i] = x[n - 1 - i];
#pragma omp parallel for
  for (int64_t i = 0; i < n; i++) y[i] = 2 * part[n - 1 - i];
}
""",
        doubled,
    ),
    "bytes side by side": Kernel(
        """
std::vector<uint8_t> bytes(n);
#pragma omp parallel for schedule(dynamic)
for (int64_t i = 0; i < n; i++) bytes[i] = i % 3;
for (int64_t i = 0; i < n; i++) y[i] = bytes[i] + x[i];
""",
        lambda x: x + np.arange(len(x)) % 3,
    ),
    "copies": Kernel(
        """
#pragma omp parallel for schedule(dynamic)
for (int64_t i = 0; i < n / 100; i++) std::memcpy(y + 100 * i, x + 100 * i, 400);
""",
        lambda x: x,
    ),
}

RACY = {
    "shared accumulator": Kernel(
        """
double s = 0;
#pragma omp parallel for
for (int64_t i = 0; i < n; i++) s += x[i];
y[0] = s;
""",
        racy="memory of its own",
    ),
    "missing barrier": Kernel(
        """
#pragma omp parallel
{
#pragma omp for nowait
  for (int64_t i = 0; i < n; i++) y[i] = x[i];
#pragma omp for
  for (int64_t i = 0; i < n; i++) y[n + i] = y[n - 1 - i];
}
""",
        racy="'y' (float32)",
    ),
    "overlapping halo": Kernel(
        """
#pragma omp parallel for schedule(dynamic, 16)
for (int64_t i = 0; i < n - 1; i++) { y[i] = x[i]; y[i + 1] = x[i + 1]; }
""",
        racy="write/write",
    ),
    "a chunk too long by one": Kernel(
        """
#pragma omp parallel
{
  int64_t size = n / omp_get_num_threads(), from = omp_get_thread_num() * size;
  for (int64_t i = from; i <= from + size && i < n; i++) y[i] = x[i];
}
""",
        racy="write/write",
    ),
    "pairs that a block's end may part": Kernel(
        """
for (int64_t i = 0; i < n; i++) y[i] = 0;
#pragma omp parallel for schedule(static)
for (int64_t i = 0; i < n; i++) y[i / 2] += x[i];
""",
        n=1024,  # which four threads divide into even blocks
        racy="'y' (float32)",
    ),
    "lost private": Kernel(
        """
float t;
#pragma omp parallel for
for (int64_t i = 0; i < n; i++) { t = 2 * x[i]; y[i] = t + 1; }
""",
        racy="memory of its own",
    ),
    "plain flag": Kernel(
        """
volatile int flag = 0; float value = 0;
#pragma omp parallel num_threads(2)
{
  if (omp_get_thread_num() == 1) { value = x[0]; flag = 1; }
  else { while (!flag) {} y[0] = value; }
}
""",
        racy="memory of its own",
    ),
    "two locks": Kernel(
        """
double s = 0;
#pragma omp parallel sections
{
#pragma omp section
  {
#pragma omp critical(one)
    s += x[0];
  }
#pragma omp section
  {
#pragma omp critical(other)
    s += x[1];
  }
}
y[0] = s;
""",
        racy="memory of its own",
    ),
    "atomic beside plain": Kernel(
        """
float s = 0;
#pragma omp parallel
{
#pragma omp atomic
  s += x[omp_get_thread_num()];
  if (omp_get_thread_num() == 2) s = 0;
}
y[0] = s;
""",
        racy="memory of its own",
    ),
    "no taskwait": Kernel(
        """
double s = 0;
#pragma omp parallel
#pragma omp single
{
  for (int64_t i = 0; i < n; i += 100) {
#pragma omp task firstprivate(i)
    for (int k = 0; k < 100; k++) y[i + k] = x[i + k];
  }
  for (int64_t i = 0; i < n; i++) s += y[i];
  y[0] = s;
}
""",
        racy="a task",
    ),
    "tasks that share": Kernel(
        """
float s = 0;
#pragma omp parallel
#pragma omp single
{
#pragma omp task shared(s)
  s += x[0];
#pragma omp task shared(s)
  s += x[1];
}
y[0] = s;
""",
        racy="a task",
    ),
    "bytes of one bit set": Kernel(
        """
std::vector<bool> bits(n);
#pragma omp parallel for schedule(dynamic)
for (int64_t i = 0; i < n; i++) bits[i] = x[i] > 0;
for (int64_t i = 0; i < n; i++) y[i] = bits[i];
""",
        racy="memory of its own",
    ),
    "copies that overlap": Kernel(
        """
#pragma omp parallel for schedule(dynamic)
for (int64_t i = 0; i < n / 100 - 1; i++) std::memcpy(y + 100 * i, x + 100 * i, 404);
""",
        racy="'y' (float32)",
    ),
    "a global": Kernel(
        """
#pragma omp parallel for
for (int64_t i = 0; i < n; i++) { scratch[i % 4] = x[i]; y[i] = scratch[(i + 1) % 4]; }
""",
        top="static float scratch[4];",
        racy="memory of its own",
    ),
}
