"""A tile of ROWS rows and two vectors of columns stays in registers while k runs; edges fall back to a plain loop.

Vector types make the tile's registers explicit: g++ keeps arrays of floats in memory more often than not.
"""

import torch
from torch import nn

from kernelwright.inline import cpp

KNOBS = {"ROWS": [4, 6, 8], "LANES": [8, 16]}
ROWS = 6
LANES = 16

SOURCE = r"""
#include <cstdint>
#include <cstring>

typedef float vec __attribute__((vector_size(4 * LANES)));
constexpr int COLUMNS = 2 * LANES;

static void tile(const float* x, const float* w, float* y, int64_t k, int64_t m, int64_t n) {
  vec sum[ROWS][2] = {};
  for (int64_t p = 0; p < k; p++) {
    vec right[2];
    std::memcpy(right, w + p * n, sizeof right);
    for (int i = 0; i < ROWS; i++) {
      sum[i][0] += x[p * m + i] * right[0];
      sum[i][1] += x[p * m + i] * right[1];
    }
  }
  for (int i = 0; i < ROWS; i++) std::memcpy(y + i * n, sum[i], sizeof sum[i]);
}

static void edge(const float* x, const float* w, float* y, int64_t k, int64_t m, int64_t n, int64_t rows,
                 int64_t columns) {
  for (int64_t i = 0; i < rows; i++) {
    float sum[COLUMNS] = {};
    for (int64_t p = 0; p < k; p++)
      for (int64_t j = 0; j < columns; j++) sum[j] += x[p * m + i] * w[p * n + j];
    std::memcpy(y + i * n, sum, columns * sizeof(float));
  }
}

extern "C" void product(const float* __restrict x, const float* __restrict w, float* __restrict y, int64_t k, int64_t m,
                        int64_t n) {
#pragma omp parallel for
  for (int64_t j = 0; j < n; j += COLUMNS)  // a strip of w stays in the L2 cache for all rows of x
    for (int64_t i = 0; i < m; i += ROWS)
      if (i + ROWS <= m && j + COLUMNS <= n)
        tile(x + i, w + j, y + i * n + j, k, m, n);
      else
        edge(x + i, w + j, y + i * n + j, k, m, n, m - i < ROWS ? m - i : ROWS, n - j < COLUMNS ? n - j : COLUMNS);
}
"""
lib = cpp(SOURCE, defines={"ROWS": ROWS, "LANES": LANES})


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        (k, m), n = x.shape, w.shape[1]
        y = torch.empty(m, n)
        lib.product(x, w, y, k, m, n)
        return y
