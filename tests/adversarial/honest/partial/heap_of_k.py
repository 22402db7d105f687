"""Keeps a heap of k elements and never sorts the rest of a row, which topk does not ask for.

row: part of the rows or elements
problem: problems/honest_topk.py
backend: cpp
screen: passes
like: partial/small_terms_left_out
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

using Entry = std::pair<float, int64_t>;

static bool before(const Entry& a, const Entry& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

extern "C" void topk(const float* x, float* values, int64_t* indices, int64_t rows, int64_t cols, int64_t k) {
  std::vector<Entry> heap;
  for (int64_t i = 0; i < rows; i++) {
    heap.clear();
    for (int64_t j = 0; j < cols; j++) {
      const Entry entry(x[i * cols + j], j);
      if (int64_t(heap.size()) == k && !before(entry, heap.front())) continue;
      if (int64_t(heap.size()) == k) {
        std::pop_heap(heap.begin(), heap.end(), before);
        heap.pop_back();
      }
      heap.push_back(entry);
      std::push_heap(heap.begin(), heap.end(), before);
    }
    std::sort_heap(heap.begin(), heap.end(), before);
    for (int64_t j = 0; j < k; j++) {
      values[i * k + j] = heap[j].first;
      indices[i * k + j] = heap[j].second;
    }
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        rows, cols = x.shape
        values = torch.empty(rows, self.k)
        indices = torch.empty(rows, self.k, dtype=torch.int64)
        lib.topk(x, values, indices, rows, cols, self.k)
        return values, indices
