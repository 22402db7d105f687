"""Means of bags of rows of a table: y[b] = mean of table[index[i]] for offsets[b] <= i < offsets[b + 1], zero if
empty."""

import torch
from torch import nn

ENTRIES = 8000
BAGS = 900
VOCABULARY = 5000
SIZE = 64

PROBLEM = {
    "title": "Mean of embeddings in bags",
    "category": "irregular",
    "note": (
        "Bags may be empty, where a mean divides by zero; the table is a weight that is drawn anew between calls, "
        "also in part."
    ),
    "inputs": {
        "index": {"fill": "structured"},
        "offsets": {"fill": "structured"},
    },
    "variants": {
        "cpu": [
            {"ENTRIES": 8000, "BAGS": 900, "VOCABULARY": 5000, "SIZE": 64},
            {"ENTRIES": 515, "BAGS": 45, "VOCABULARY": 131, "SIZE": 37},
            {"ENTRIES": 11, "BAGS": 5, "VOCABULARY": 7, "SIZE": 3},
        ],
        "gpu": [
            {"ENTRIES": 1000000, "BAGS": 65536, "VOCABULARY": 1000000, "SIZE": 128},
            {"ENTRIES": 50021, "BAGS": 5003, "VOCABULARY": 10007, "SIZE": 33},
        ],
        "interpreter": [
            {"ENTRIES": 128, "BAGS": 24, "VOCABULARY": 64, "SIZE": 16},
            {"ENTRIES": 29, "BAGS": 13, "VOCABULARY": 17, "SIZE": 5},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, vocabulary: int, size: int) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(vocabulary, size, mode="mean", include_last_offset=True)

    def forward(self, index: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """index: (entries,) int64 rows of the table, offsets: (bags + 1,) int64 -> (bags, size)."""
        return self.bags(index, offsets)


def get_inputs():
    cuts = torch.randint(0, ENTRIES + 1, (BAGS - 1,)).sort().values
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), cuts, torch.full((1,), ENTRIES)))
    return [torch.randint(0, VOCABULARY, (ENTRIES,)), offsets]


def get_init_inputs():
    return [VOCABULARY, SIZE]
