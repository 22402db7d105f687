"""Linear layer with a scaled residual, clamped: y = clamp((x W^T + b) * scale + residual, low, high)."""

import torch
from torch import nn

ROWS = 384
IN_FEATURES = 64
OUT_FEATURES = 512
SCALE = 0.5
LOW = -2.0
HIGH = 2.0

PROBLEM = {
    "title": "GEMM, scale, residual, clamp",
    "category": "gemm_epilogue",
    "note": (
        "The clamp cuts on both sides and not most of the elements; scale and residual are read for every one of them."
    ),
    "heavy_ops": ["aten.mm", "aten.addmm"],
    "inputs": {
        "x": {"fill": "normal", "low": -1e3, "high": 1e3},
        "residual": {"fill": "normal", "low": -1e3, "high": 1e3},
    },
    "variants": {
        "cpu": [
            {"ROWS": 384, "IN_FEATURES": 64, "OUT_FEATURES": 512},
            {"ROWS": 61, "IN_FEATURES": 97, "OUT_FEATURES": 203},
            {"ROWS": 2, "IN_FEATURES": 3, "OUT_FEATURES": 5},
        ],
        "gpu": [
            {"ROWS": 4096, "IN_FEATURES": 1024, "OUT_FEATURES": 2048},
            {"ROWS": 1021, "IN_FEATURES": 515, "OUT_FEATURES": 771},
        ],
        "interpreter": [
            {"ROWS": 32, "IN_FEATURES": 32, "OUT_FEATURES": 64},
            {"ROWS": 5, "IN_FEATURES": 19, "OUT_FEATURES": 37},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, in_features: int, out_features: int, scale: float, low: float, high: float) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.scale, self.low, self.high = scale, low, high

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """x: (rows, in_features), residual: (rows, out_features) -> (rows, out_features)."""
        y = self.linear(x) * self.scale + residual
        return torch.clamp(y, self.low, self.high)


def get_inputs():
    return [torch.randn(ROWS, IN_FEATURES), torch.randn(ROWS, OUT_FEATURES)]


def get_init_inputs():
    return [IN_FEATURES, OUT_FEATURES, SCALE, LOW, HIGH]
