"""How often each value occurs."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "scatter",
    "dtype": "int32",
    "inputs": {"values": {"fill": "uniform", "low": 0, "high": 63}},
    "variants": {"interpreter": [{"COUNT": 640}, {"COUNT": 333}], "gpu": [{"COUNT": 1048576}]},
}
COUNT = 640
BINS = 64


class Model(nn.Module):
    def forward(self, values):
        counts = torch.zeros(BINS, dtype=torch.int32, device=values.device)
        return counts.scatter_add_(0, values.long(), torch.ones_like(values))


def get_inputs():
    return [torch.randint(0, BINS, (COUNT,), dtype=torch.int32)]


def get_init_inputs():
    return []
