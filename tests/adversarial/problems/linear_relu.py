"""A linear layer and a rectifier; its weights are inputs."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "gemm",
    "heavy_ops": ["aten.addmm"],
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {
        "cpu": [{"ROWS": 32, "FEATURES": 64}, {"ROWS": 5, "FEATURES": 17}],
        "interpreter": [{"ROWS": 4, "FEATURES": 16}, {"ROWS": 3, "FEATURES": 5}],
    },
}
ROWS = 32
FEATURES = 64


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 48)

    def forward(self, x):
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs():
    return [FEATURES]
