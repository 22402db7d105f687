"""Two linear layers with a rectifier between them."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "gemm",
    "heavy_ops": ["aten.addmm"],
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {"cpu": [{"ROWS": 16, "FEATURES": 48}, {"ROWS": 3, "FEATURES": 17}]},
}
ROWS = 16
FEATURES = 48


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.up = nn.Linear(features, 64)
        self.down = nn.Linear(64, features)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def get_inputs():
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs():
    return [FEATURES]
