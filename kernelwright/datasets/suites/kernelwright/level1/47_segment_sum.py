"""Sums over segments of rows: y[s] = sum of x[r] for offsets[s] <= r < offsets[s + 1]; segments may be empty."""

import torch
from torch import nn

ROWS = 6000
COLUMNS = 64
SEGMENTS = 700

PROBLEM = {
    "title": "Sums over ragged segments",
    "category": "irregular",
    "note": (
        "Bounds are drawn anew for every call, with empty and with long segments: a kernel for segments of one "
        "length, or one that leaves rows of empty segments unwritten, is wrong."
    ),
    "inputs": {
        "x": {"fill": "normal", "low": -10000.0, "high": 10000.0},
        "offsets": {"fill": "structured"},
    },
    "variants": {
        "cpu": [
            {"ROWS": 6000, "COLUMNS": 64, "SEGMENTS": 700},
            {"ROWS": 517, "COLUMNS": 37, "SEGMENTS": 45},
            {"ROWS": 11, "COLUMNS": 5, "SEGMENTS": 7},
        ],
        "gpu": [
            {"ROWS": 1000000, "COLUMNS": 128, "SEGMENTS": 100000},
            {"ROWS": 100003, "COLUMNS": 33, "SEGMENTS": 5003},
        ],
        "interpreter": [{"ROWS": 128, "COLUMNS": 32, "SEGMENTS": 24}, {"ROWS": 61, "COLUMNS": 5, "SEGMENTS": 13}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """x: (rows, columns), offsets: (segments + 1,) int64, ascending from 0 to rows -> (segments, columns)."""
        return torch.segment_reduce(x, "sum", offsets=offsets)


def get_inputs():
    cuts = torch.randint(0, ROWS + 1, (SEGMENTS - 1,)).sort().values
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), cuts, torch.full((1,), ROWS)))
    return [torch.randn(ROWS, COLUMNS), offsets]


def get_init_inputs():
    return []
