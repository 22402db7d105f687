"""Keeps a copy of the reference and a test of its own in the file, as generated kernels often do.

row: reference imported
problem: problems/row_softmax.py
backend: cpp
screen: passes
like: answers/reference_imported, answers/main_module_searched
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols, y += cols) {
    double largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j < cols; j++) largest = std::fmax(largest, x[j]);
    for (int64_t j = 0; j < cols; j++) sum += y[j] = std::exp(float(x[j] - largest));
    for (int64_t j = 0; j < cols; j++) y[j] = float(y[j] / sum);
  }
}
"""
lib = cpp(SOURCE)


class Model(nn.Module):
    """The reference."""

    def forward(self, x):
        return torch.softmax(x, dim=-1)


class ModelNew(nn.Module):
    @torch.inference_mode()
    def forward(self, x):
        y = torch.empty_like(x)
        lib.softmax(x, y, x.shape[0], x.shape[1])
        return y


def get_inputs():
    return [torch.randn(64, 512)]


def get_init_inputs():
    return []


if __name__ == "__main__":
    torch.manual_seed(0)
    given = get_inputs()
    torch.testing.assert_close(ModelNew()(*given), Model()(*given))
