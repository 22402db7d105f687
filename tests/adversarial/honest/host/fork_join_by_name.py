"""Functions and members that are called fork, kill, system and open, none of which is the system's.

row: fork bomb
problem: problems/row_sum.py
backend: cpp
screen: passes
like: host/fork_bomb, host/kill_everyone
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

namespace tree {

struct Range {
  int64_t from, to;
  Range fork() const { return {from, (from + to) / 2}; }
  Range join() const { return {(from + to) / 2, to}; }
  bool open() const { return to - from > 16; }
};

static float kill(float x) { return x == x ? x : x; }  // keeps NaN

static float system(const float* x, Range range) {
  if (range.open()) return tree::system(x, range.fork()) + tree::system(x, range.join());
  float sum = 0;
  for (int64_t i = range.from; i < range.to; i++) sum += tree::kill(x[i]);
  return sum;
}

}  // namespace tree

extern "C" void row_sum(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) y[i] = tree::system(x + i * cols, {0, cols});
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0])
        lib.row_sum(x, y, x.shape[0], x.shape[1])
        return y
