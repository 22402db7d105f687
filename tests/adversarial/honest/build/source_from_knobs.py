"""An f-string makes the C++ source from knobs, doubled braces and all.

row: template bombs
problem: problems/matmul.py
backend: cpp
screen: passes
like: build/include_assembled, build/template_bomb
"""

import torch
from torch import nn

from kernelwright.inline import cpp

KNOBS = {"TILE": [16, 8, 32], "ORDER": ["ipj", "pij"]}
TILE = 16
ORDER = "ipj"
LOOPS = {
    "i": "for (int64_t i = 0; i < m; i++)",
    "p": "for (int64_t p = 0; p < k; p++)",
    "j": f"for (int64_t j = from; j < from + {TILE} && j < n; j++)",
}
SOURCE = f"""
#include <cstdint>
#include <cstring>

extern "C" void matmul(const float* a, const float* b, float* c, int64_t m, int64_t k, int64_t n) {{
  std::memset(c, 0, m * n * sizeof *c);
  for (int64_t from = 0; from < n; from += {TILE}) {{  // order {ORDER}
    {LOOPS[ORDER[0]]} {{
      {LOOPS[ORDER[1]]} {{
        {LOOPS[ORDER[2]]} {{ c[i * n + j] += a[i * k + p] * b[p * n + j]; }}
      }}
    }}
  }}
}}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, a, b):
        c = torch.empty(a.shape[0], b.shape[1])
        lib.matmul(a, b, c, a.shape[0], a.shape[1], b.shape[1])
        return c
