"""Each token's product with the matrix of its expert, in bfloat16."""

import torch
import torch.nn as nn

PROBLEM = {
    "category": "gemm",
    "dtype": "bfloat16",
    "inputs": {"x": {"fill": "normal", "low": -30.0, "high": 30.0}, "expert": {"fill": "uniform", "low": 0, "high": 3}},
    "variants": {
        "interpreter": [{"TOKENS": 24, "IN": 32, "OUT": 16}, {"TOKENS": 17, "IN": 48, "OUT": 24}],
        "gpu": [{"TOKENS": 1024, "IN": 512, "OUT": 512}],
    },
}
TOKENS = 24
IN = 32
OUT = 16
EXPERTS = 4


class Model(nn.Module):
    def __init__(self, experts, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, inputs, outputs, dtype=torch.bfloat16) / inputs**0.5)

    def forward(self, x, expert):
        return torch.einsum("ti,tio->to", x.float(), self.weight.float()[expert.long()]).to(x.dtype)


def get_inputs():
    return [torch.randn(TOKENS, IN, dtype=torch.bfloat16), torch.randint(0, EXPERTS, (TOKENS,), dtype=torch.int32)]


def get_init_inputs():
    return [EXPERTS, IN, OUT]
