"""Largest entry of each column within ragged segments of rows, zero where none is positive."""

import torch
from torch import nn

ROWS = 4000
COLUMNS = 48
SEGMENTS = 300

PROBLEM = {
    "category": "irregular",
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}, "offsets": {"fill": "structured"}},
    "variants": {
        "cpu": [{"ROWS": 4000, "COLUMNS": 48, "SEGMENTS": 300}, {"ROWS": 61, "COLUMNS": 5, "SEGMENTS": 17}],
        "gpu": [{"ROWS": 400000, "COLUMNS": 128, "SEGMENTS": 9000}, {"ROWS": 61, "COLUMNS": 5, "SEGMENTS": 17}],
        "interpreter": [{"ROWS": 96, "COLUMNS": 16, "SEGMENTS": 12}, {"ROWS": 61, "COLUMNS": 5, "SEGMENTS": 17}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """x: (rows, columns), offsets: (segments + 1,) int64, ascending from 0 to rows -> (segments, columns)."""
        return torch.segment_reduce(x, "max", offsets=offsets, initial=0.0)


def get_inputs():
    cuts = torch.randint(0, ROWS + 1, (SEGMENTS - 1,)).sort().values
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), cuts, torch.full((1,), ROWS)))
    return [torch.randn(ROWS, COLUMNS), offsets]


def get_init_inputs():
    return []
