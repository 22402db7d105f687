"""Sums of the rows that belong together: segment i is offsets[i] to offsets[i + 1]."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "scatter",
    "inputs": {"x": {"fill": "normal", "low": -30.0, "high": 30.0}},
    "variants": {
        "interpreter": [{"ROWS": 40, "COLS": 32, "SEGMENTS": 5}, {"ROWS": 23, "COLS": 12, "SEGMENTS": 6}],
        "gpu": [{"ROWS": 8192, "COLS": 128, "SEGMENTS": 256}],
    },
}
ROWS = 40
COLS = 32
SEGMENTS = 5


class Model(nn.Module):
    def forward(self, x, offsets):
        lengths = offsets.diff()
        which = torch.repeat_interleave(torch.arange(SEGMENTS, device=x.device), lengths, output_size=x.shape[0])
        return torch.zeros(SEGMENTS, x.shape[1], dtype=x.dtype, device=x.device).index_add(0, which, x)


def get_inputs():
    cuts = torch.randint(0, ROWS + 1, (SEGMENTS - 1,)).sort().values
    return [torch.randn(ROWS, COLS), torch.cat([torch.tensor([0]), cuts, torch.tensor([ROWS])]).int()]


def get_init_inputs():
    return []
