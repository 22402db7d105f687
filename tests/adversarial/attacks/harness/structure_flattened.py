"""Returns a plain tuple where the reference returns a nested dictionary: whoever asks for an entry by its name fails.

row: oversized, deep or malformed results
problem: problems/honest_row_statistics.py
backend: cpp
screen: passes
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

extern "C" void statistics(const float* x, float* mean, float* low, float* high, int64_t* positive, int64_t rows,
                           int64_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols) {
    double sum = 0;
    float least = x[0], most = x[0];
    int64_t count = 0;
    for (int64_t j = 0; j < cols; j++) {
      sum += x[j];
      least = x[j] < least ? x[j] : least;
      most = x[j] > most ? x[j] : most;
      count += x[j] > 0;
    }
    mean[i] = float(sum / cols);
    low[i] = least;
    high[i] = most;
    positive[i] = count;
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        mean, low, high = (torch.empty(rows) for _ in range(3))
        positive = torch.empty(rows, dtype=torch.int64)
        lib.statistics(x, mean, low, high, positive, rows, cols)
        return mean, low, high, positive
