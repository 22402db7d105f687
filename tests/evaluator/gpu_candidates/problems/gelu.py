"""GELU by its tangent formula, in float16."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "pointwise",
    "dtype": "float16",
    "inputs": {"x": {"fill": "normal", "low": -30.0, "high": 30.0}},
    "variants": {"interpreter": [{"COUNT": 512}, {"COUNT": 302}], "gpu": [{"COUNT": 1048576}]},
}
COUNT = 512


class Model(nn.Module):
    def forward(self, x):
        return nn.functional.gelu(x.float(), approximate="tanh").to(x.dtype)


def get_inputs():
    return [torch.randn(COUNT, dtype=torch.float16)]


def get_init_inputs():
    return []
