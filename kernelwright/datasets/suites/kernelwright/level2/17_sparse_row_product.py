"""A sparse matrix in compressed rows times a dense one: y[r] = sum of value[i] dense[column[i]] over the entries of row
r."""

import torch
from torch import nn

ROWS = 1500
INNER = 1200
COLUMNS = 48
ENTRIES = 12000

PROBLEM = {
    "title": "Sparse times dense matrix",
    "category": "irregular",
    "note": (
        "The pattern is an input: rows are empty, short and long, columns repeat, and all of it is drawn anew for "
        "every call."
    ),
    "inputs": {
        "value": {"fill": "normal", "low": -1000.0, "high": 1000.0},
        "column": {"fill": "structured"},
        "offsets": {"fill": "structured"},
        "dense": {"fill": "normal", "low": -1000.0, "high": 1000.0},
    },
    "variants": {
        "cpu": [
            {"ROWS": 1500, "INNER": 1200, "COLUMNS": 48, "ENTRIES": 12000},
            {"ROWS": 131, "INNER": 77, "COLUMNS": 37, "ENTRIES": 515},
            {"ROWS": 7, "INNER": 5, "COLUMNS": 3, "ENTRIES": 11},
        ],
        "gpu": [
            {"ROWS": 65536, "INNER": 65536, "COLUMNS": 128, "ENTRIES": 1000000},
            {"ROWS": 5003, "INNER": 1021, "COLUMNS": 33, "ENTRIES": 50021},
        ],
        "interpreter": [
            {"ROWS": 32, "INNER": 24, "COLUMNS": 16, "ENTRIES": 128},
            {"ROWS": 13, "INNER": 7, "COLUMNS": 5, "ENTRIES": 29},
        ],
    },
}


class Model(nn.Module):
    def forward(
        self, value: torch.Tensor, column: torch.Tensor, offsets: torch.Tensor, dense: torch.Tensor
    ) -> torch.Tensor:
        """value: (entries,), column: (entries,) int64, offsets: (rows + 1,) int64, dense: (inner, n) -> (rows, n)."""
        rows = offsets.numel() - 1
        row = torch.searchsorted(offsets, torch.arange(column.numel(), device=column.device), right=True) - 1
        return dense.new_zeros(rows, dense.shape[1]).index_add(0, row, value[:, None] * dense[column])


def get_inputs():
    cuts = torch.randint(0, ENTRIES + 1, (ROWS - 1,)).sort().values
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), cuts, torch.full((1,), ENTRIES)))
    return [torch.randn(ENTRIES), torch.randint(0, INNER, (ENTRIES,)), offsets, torch.randn(INNER, COLUMNS)]


def get_init_inputs():
    return []
