"""Softmax of every row, as a suite without metadata would have it: nothing is said about what inputs may hold."""

import torch
import torch.nn as nn

ROWS = 64
COLS = 512


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
