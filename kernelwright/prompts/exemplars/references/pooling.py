"""Average over windows of 2 by 2."""

import torch
import torch.nn.functional as F
from torch import nn

PLANES = 32
HEIGHT = 64
WIDTH = 64

PROBLEM = {
    "category": "pooling",
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {
        "cpu": [{"PLANES": 32, "HEIGHT": 64, "WIDTH": 64}, {"PLANES": 3, "HEIGHT": 7, "WIDTH": 9}],
        "gpu": [{"PLANES": 4096, "HEIGHT": 56, "WIDTH": 56}, {"PLANES": 3, "HEIGHT": 7, "WIDTH": 9}],
        "interpreter": [{"PLANES": 2, "HEIGHT": 8, "WIDTH": 16}, {"PLANES": 3, "HEIGHT": 7, "WIDTH": 9}],
    },
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (planes, height, width) -> (planes, height // 2, width // 2)."""
        return F.avg_pool2d(x, 2)


def get_inputs():
    return [torch.randn(PLANES, HEIGHT, WIDTH)]


def get_init_inputs():
    return []
