"""A thread owns whole segments, so that nothing is written twice; short and long ones are dealt out as they come."""

from torch import nn

from kernelwright.inline import cpp

KNOBS = {"DEALT": [4, 16, 64]}
DEALT = 16

SOURCE = r"""
#include <cstdint>

extern "C" void segment_max(const float* __restrict x, const int64_t* __restrict offsets, float* __restrict y,
                            int64_t segments, int64_t columns) {
#pragma omp parallel for schedule(dynamic, DEALT)
  for (int64_t s = 0; s < segments; s++) {
    float* out = y + s * columns;
    for (int64_t c = 0; c < columns; c++) out[c] = 0.0f;  // what an empty segment has
    for (int64_t r = offsets[s]; r < offsets[s + 1]; r++) {
      const float* row = x + r * columns;
      for (int64_t c = 0; c < columns; c++) out[c] = row[c] > out[c] ? row[c] : out[c];
    }
  }
}
"""
lib = cpp(SOURCE, defines={"DEALT": DEALT})


class ModelNew(nn.Module):
    def forward(self, x, offsets):
        segments = offsets.numel() - 1
        y = x.new_empty(segments, x.shape[1])
        lib.segment_max(x, offsets, y, segments, x.shape[1])
        return y
