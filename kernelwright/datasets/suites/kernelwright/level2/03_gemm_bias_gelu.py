"""Linear layer, then exact GELU: y = gelu(x W^T + b)."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 512
IN_FEATURES = 48
OUT_FEATURES = 768

PROBLEM = {
    "title": "GEMM, bias, GELU",
    "category": "gemm_epilogue",
    "note": (
        "GELU is the exact one, and its steep part is hit by ordinary data; weights and biases change between calls."
    ),
    "heavy_ops": ["aten.mm", "aten.addmm"],
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {
        "cpu": [
            {"ROWS": 512, "IN_FEATURES": 48, "OUT_FEATURES": 768},
            {"ROWS": 67, "IN_FEATURES": 131, "OUT_FEATURES": 259},
            {"ROWS": 3, "IN_FEATURES": 5, "OUT_FEATURES": 7},
        ],
        "gpu": [
            {"ROWS": 4096, "IN_FEATURES": 1024, "OUT_FEATURES": 4096},
            {"ROWS": 1021, "IN_FEATURES": 515, "OUT_FEATURES": 771},
        ],
        "interpreter": [
            {"ROWS": 32, "IN_FEATURES": 32, "OUT_FEATURES": 64},
            {"ROWS": 5, "IN_FEATURES": 19, "OUT_FEATURES": 37},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, in_features) -> (rows, out_features)."""
        return F.gelu(self.linear(x))


def get_inputs():
    return [torch.randn(ROWS, IN_FEATURES)]


def get_init_inputs():
    return [IN_FEATURES, OUT_FEATURES]
