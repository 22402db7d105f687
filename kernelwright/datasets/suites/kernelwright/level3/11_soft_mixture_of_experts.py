"""A mixture of experts with weights for all of them: y = sum_e softmax(x gate)[e] relu(x up[e]) down[e]."""

import torch
from torch import nn

TOKENS = 128
WIDTH = 64
HIDDEN = 96
EXPERTS = 6

PROBLEM = {
    "title": "Dense mixture of experts",
    "category": "block",
    "note": (
        "All experts count for every token, so none may be skipped; gates decide how much, and their weights change "
        "between calls."
    ),
    "heavy_ops": ["aten.addmm", "aten.bmm"],
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {
        "cpu": [
            {"TOKENS": 128, "WIDTH": 64, "HIDDEN": 96, "EXPERTS": 6},
            {"TOKENS": 37, "WIDTH": 45, "HIDDEN": 29, "EXPERTS": 3},
            {"TOKENS": 3, "WIDTH": 7, "HIDDEN": 5, "EXPERTS": 2},
        ],
        "gpu": [
            {"TOKENS": 4096, "WIDTH": 512, "HIDDEN": 1024, "EXPERTS": 8},
            {"TOKENS": 515, "WIDTH": 130, "HIDDEN": 77, "EXPERTS": 5},
        ],
        "interpreter": [
            {"TOKENS": 16, "WIDTH": 16, "HIDDEN": 24, "EXPERTS": 4},
            {"TOKENS": 5, "WIDTH": 7, "HIDDEN": 9, "EXPERTS": 3},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (tokens, width) -> (tokens, width)."""
        weights = torch.softmax(self.gate(x), dim=-1)
        hidden = torch.relu(torch.matmul(x, self.up))
        each = torch.matmul(hidden, self.down)
        return (each * weights.T[:, :, None]).sum(dim=0)


def get_inputs():
    return [torch.randn(TOKENS, WIDTH)]


def get_init_inputs():
    return [WIDTH, HIDDEN, EXPERTS]
