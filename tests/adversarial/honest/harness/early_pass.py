"""Has classes and branches whose body is `pass`, a method named exec, and docstrings that say fork and kill.

row: decoy kernels
problem: problems/honest_topk.py
backend: cpp
screen: passes
like: harness/kernel_run_beside_torch
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

extern "C" void topk(const float* x, float* values, int64_t* indices, int64_t rows, int64_t cols, int64_t k) {
  std::vector<int64_t> order(cols);
  for (int64_t i = 0; i < rows; i++, x += cols, values += k, indices += k) {
    std::iota(order.begin(), order.end(), int64_t(0));
    const auto before = [x](int64_t a, int64_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; };
    std::partial_sort(order.begin(), order.begin() + k, order.end(), before);
    for (int64_t j = 0; j < k; j++) values[j] = x[indices[j] = order[j]];
  }
}
"""
lib = cpp(SOURCE)


class WrongShape(ValueError):
    """Raised where a kernel would have to fork, or kill, a branch that it has not got."""

    pass  # noqa: PIE790


class Operation:
    def exec(self, x, k):
        """Run the kernel; no exec() of text, no eval()."""
        rows, cols = x.shape
        if k > cols:
            raise WrongShape(f"{k} of {cols} elements")
        values, indices = torch.empty(rows, k), torch.empty(rows, k, dtype=torch.int64)
        lib.topk(x, values, indices, rows, cols, k)
        return values, indices


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k
        self.operation = Operation()

    def forward(self, x):
        if self.training:
            pass
        return self.operation.exec(x, self.k)
