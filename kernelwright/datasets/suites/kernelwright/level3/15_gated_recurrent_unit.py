"""A gated recurrent unit (Cho et al., 2014) over a sequence from a given state; all states come out."""

import torch
from torch import nn

STEPS = 24
BATCH = 16
INPUTS = 48
SIZE = 64

PROBLEM = {
    "title": "Gated recurrent unit over a sequence",
    "category": "scan",
    "note": (
        "Every state depends on all before it, so steps cannot be left out or done at once; the last one shows an "
        "error of any earlier one."
    ),
    "heavy_ops": ["aten.addmm"],
    "inputs": {
        "x": {"fill": "normal", "low": -100.0, "high": 100.0},
        "state": {"fill": "normal", "low": -1.0, "high": 1.0},
    },
    "variants": {
        "cpu": [
            {"STEPS": 24, "BATCH": 16, "INPUTS": 48, "SIZE": 64},
            {"STEPS": 11, "BATCH": 5, "INPUTS": 7, "SIZE": 13},
            {"STEPS": 3, "BATCH": 2, "INPUTS": 5, "SIZE": 3},
        ],
        "gpu": [
            {"STEPS": 256, "BATCH": 64, "INPUTS": 256, "SIZE": 512},
            {"STEPS": 33, "BATCH": 5, "INPUTS": 37, "SIZE": 65},
        ],
        "interpreter": [
            {"STEPS": 4, "BATCH": 2, "INPUTS": 8, "SIZE": 12},
            {"STEPS": 3, "BATCH": 3, "INPUTS": 5, "SIZE": 7},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.gates = nn.Linear(inputs, 3 * size)
        self.recurrent = nn.Linear(size, 3 * size)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """x: (steps, batch, inputs), state: (batch, size) -> (steps, batch, size)."""
        states = []
        for given in self.gates(x):
            reset, update, new = given.chunk(3, dim=-1)
            reset_state, update_state, new_state = self.recurrent(state).chunk(3, dim=-1)
            reset, update = torch.sigmoid(reset + reset_state), torch.sigmoid(update + update_state)
            state = (1 - update) * torch.tanh(new + reset * new_state) + update * state
            states.append(state)
        return torch.stack(states)


def get_inputs():
    return [torch.randn(STEPS, BATCH, INPUTS), torch.rand(BATCH, SIZE) * 2 - 1]


def get_init_inputs():
    return [INPUTS, SIZE]
