"""The product of one half of each row with SiLU of the other, in bfloat16."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "pointwise",
    "dtype": "bfloat16",
    "inputs": {"x": {"fill": "normal", "low": -30.0, "high": 30.0}},
    "variants": {
        "interpreter": [{"ROWS": 4, "COLS": 128}, {"ROWS": 3, "COLS": 80}],
        "gpu": [{"ROWS": 4096, "COLS": 2048}],
    },
}
ROWS = 4
COLS = 128


class Model(nn.Module):
    def forward(self, x):
        gate, value = x.float().chunk(2, dim=-1)
        return (nn.functional.silu(gate) * value).to(x.dtype)


def get_inputs():
    return [torch.randn(ROWS, COLS, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
