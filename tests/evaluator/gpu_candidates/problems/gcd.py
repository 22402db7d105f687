"""The greatest common divisor of pairs."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "pointwise",
    "dtype": "int32",
    "inputs": {"a": {"fill": "uniform", "low": 1, "high": 5000}, "b": {"fill": "uniform", "low": 1, "high": 5000}},
    "variants": {"interpreter": [{"COUNT": 256}, {"COUNT": 133}], "gpu": [{"COUNT": 1048576}]},
}
COUNT = 256


class Model(nn.Module):
    def forward(self, a, b):
        return torch.gcd(a, b)


def get_inputs():
    return [torch.randint(1, 5001, (COUNT,), dtype=torch.int32) for _ in range(2)]


def get_init_inputs():
    return []
