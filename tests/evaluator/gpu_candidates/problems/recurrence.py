"""A gated linear recurrence along time: h[t] = sigmoid(gate[t]) * h[t - 1] + x[t]."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "scan",
    "inputs": {
        "gate": {"fill": "normal", "low": -30.0, "high": 30.0},
        "x": {"fill": "normal", "low": -30.0, "high": 30.0},
    },
    "variants": {
        "interpreter": [{"BATCH": 2, "TIME": 32, "CHANNELS": 8}, {"BATCH": 1, "TIME": 21, "CHANNELS": 5}],
        "gpu": [{"BATCH": 8, "TIME": 512, "CHANNELS": 256}],
    },
}
BATCH = 2
TIME = 32
CHANNELS = 8


class Model(nn.Module):
    def forward(self, gate, x):
        decay, h, found = torch.sigmoid(gate), torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = decay[:, t] * h + x[:, t]
            found.append(h)
        return torch.stack(found, dim=1)


def get_inputs():
    return [torch.randn(BATCH, TIME, CHANNELS), torch.randn(BATCH, TIME, CHANNELS)]


def get_init_inputs():
    return []
