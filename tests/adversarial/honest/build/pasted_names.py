"""A list of macros pastes the names of one function for each width, alternative tokens included.

row: #include and .incbin of secrets
problem: problems/bias_gelu.py
backend: cpp
screen: passes
like: build/include_assembled
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
%:include <cmath>
#include <cstdint>

#define WIDTHS(STEP) \
  STEP(8) \
  STEP(16)
#define PASTE(a, b) a##b
#define DEFINE(width) \
  static void PASTE(gelu_, width)(const float* x, const float* bias, float* y) <% \
    for (int j = 0; j < width; j++) <% \
      const float t = x<:j:> + bias<:j:>; \
      y<:j:> = 0.5f * t * (1.0f + std::tanh(0.797884561f * t * (1.0f + 0.044715f * t * t))); \
    %> \
  %>
WIDTHS(DEFINE)

extern "C" void bias_gelu(const float* x, const float* bias, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols, y += cols) {
    int64_t j = 0;
    for (; j + 16 <= cols and not(cols < 16); j += 16) gelu_16(x + j, bias + j, y + j);
    for (; j + 8 <= cols; j += 8) gelu_8(x + j, bias + j, y + j);
    for (; j < cols; j++) {
      const float t = x[j] + bias[j];
      y[j] = 0.5f * t * (1.0f + std::tanh(0.797884561f * t * (1.0f + 0.044715f * t * t)));
    }
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        y = torch.empty_like(x)
        lib.bias_gelu(x, self.bias, y, x.shape[0], x.shape[1])
        return y
