"""One step of AdamW (Loshchilov and Hutter, 2019) at step 10: new weights and new moments of gradients and their
squares."""

import torch
from torch import nn

ROWS = 200
COLUMNS = 1200

PROBLEM = {
    "title": "AdamW update",
    "category": "pointwise",
    "note": (
        "Three outputs of three inputs and a gradient, of which none can be kept; moments near zero decide by the "
        "epsilon outside of the root."
    ),
    "inputs": {
        "weight": {"fill": "normal", "low": -1000.0, "high": 1000.0},
        "gradient": {"fill": "normal", "low": -1000.0, "high": 1000.0},
        "first": {"fill": "normal", "low": -1000.0, "high": 1000.0},
        "second": {"fill": "uniform", "low": 0.0, "high": 100.0},
    },
    "variants": {
        "cpu": [
            {"ROWS": 200, "COLUMNS": 1200},
            {"ROWS": 67, "COLUMNS": 1027},
            {"ROWS": 3, "COLUMNS": 7},
        ],
        "gpu": [{"ROWS": 8192, "COLUMNS": 4096}, {"ROWS": 1021, "COLUMNS": 2051}],
        "interpreter": [{"ROWS": 16, "COLUMNS": 128}, {"ROWS": 5, "COLUMNS": 61}],
    },
}


class Model(nn.Module):
    def forward(
        self, weight: torch.Tensor, gradient: torch.Tensor, first: torch.Tensor, second: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """All (rows, columns), second moments not negative -> weight, first and second moment after the step."""
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient.square()
        step = (first / (1 - 0.9**10)) / ((second / (1 - 0.999**10)).sqrt() + 1e-8)
        return weight * (1 - 1e-3 * 0.01) - 1e-3 * step, first, second


def get_inputs():
    moments = [torch.randn(ROWS, COLUMNS) * 0.1, torch.rand(ROWS, COLUMNS) * 0.01]
    return [torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS), *moments]


def get_init_inputs():
    return []
