"""Position of the first largest element of each row, for level1/argmax.

ONCE: lanes keep the position of their largest element while the row is read once; otherwise the largest value is found
first and then looked for. LANES is the width of a vector, CHAINS how many of them run side by side.
"""

import torch
from torch import nn

from kernelwright.inline import cpp

KNOBS = {"ONCE": [True, False], "LANES": [4, 8, 16], "CHAINS": [1, 2, 4]}
ONCE = True
LANES = 4
CHAINS = 1

SOURCE = r"""
#include <cstdint>
#include <cstring>

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));

static inline vec load(const float* from) {
  vec v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

extern "C" void argmax(const float* __restrict x, int64_t* __restrict y, int64_t rows, int64_t columns) {
  constexpr int64_t STEP = LANES * CHAINS;
  const int64_t whole = columns / STEP * STEP;
  for (int64_t row = 0; row < rows; row++) {
    const float* in = x + row * columns;
    vec tops[CHAINS];
    ints at[CHAINS] = {};
    for (int c = 0; c < CHAINS; c++) tops[c] = vec{} - 3.4e38f;
    for (int64_t i = 0; i < whole; i += STEP)
      for (int c = 0; c < CHAINS; c++) {
        const vec v = load(in + i + c * LANES);
        const ints above = v > tops[c];
        tops[c] = above ? v : tops[c];
        if (ONCE) at[c] = above ? ints{} + int32_t(i) : at[c];
      }
    float top = -3.4e38f;
    int64_t found = 0;
    for (int c = 0; c < CHAINS; c++)
      for (int lane = 0; lane < LANES; lane++) {
        const int64_t place = at[c][lane] + c * LANES + lane;
        if (tops[c][lane] > top || (ONCE && tops[c][lane] == top && place < found)) top = tops[c][lane], found = place;
      }
    if (!ONCE) {
      for (found = 0; found < whole; found += STEP) {
        ints equal = {};
        for (int c = 0; c < CHAINS; c++) equal |= load(in + found + c * LANES) == top;
        bool any = false;
        for (int lane = 0; lane < LANES; lane++) any |= equal[lane] != 0;
        if (any) break;
      }
      while (found < whole && in[found] != top) found++;
    }
    for (int64_t i = whole; i < columns; i++)
      if (in[i] > top) top = in[i], found = i;
    y[row] = found;
  }
}
"""
lib = cpp(SOURCE, defines={"ONCE": ONCE, "LANES": LANES, "CHAINS": CHAINS})


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape
        y = torch.empty(rows, dtype=torch.int64)
        lib.argmax(x, y, rows, columns)
        return y
