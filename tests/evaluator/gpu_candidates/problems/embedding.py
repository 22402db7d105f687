"""Rows of a table by their numbers."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "gather",
    "inputs": {"ids": {"fill": "uniform", "low": 0, "high": 99}},
    "variants": {
        "interpreter": [{"TOKENS": 6, "WIDTH": 64}, {"TOKENS": 5, "WIDTH": 36}],
        "gpu": [{"TOKENS": 8192, "WIDTH": 512}],
    },
}
TOKENS = 6
WIDTH = 64
WORDS = 100


class Model(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.table = nn.Embedding(words, width)

    def forward(self, ids):
        return self.table(ids)


def get_inputs():
    return [torch.randint(0, WORDS, (TOKENS,))]


def get_init_inputs():
    return [WORDS, WIDTH]
