"""Rows of a table, gathered by integer ids and scaled."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "gather",
    "inputs": {"ids": {"fill": "uniform", "low": 0, "high": 99}},
    "variants": {
        "cpu": [{"TOKENS": 96, "WIDTH": 64}, {"TOKENS": 7, "WIDTH": 19}],
        "interpreter": [{"TOKENS": 5, "WIDTH": 16}, {"TOKENS": 3, "WIDTH": 7}],
    },
}
TOKENS = 96
WIDTH = 64
WORDS = 100


class Model(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.scale = width**0.5

    def forward(self, ids):
        return self.table(ids) * self.scale


def get_inputs():
    return [torch.randint(0, WORDS, (TOKENS,))]


def get_init_inputs():
    return [WORDS, WIDTH]
