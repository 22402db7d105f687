"""The scan of selective state spaces (Gu and Dao, 2023): h = exp(dt a) h + dt b x, y = c h + d x, for each channel."""

import torch
from torch import nn

BATCH = 2
STEPS = 48
CHANNELS = 64
STATES = 16

PROBLEM = {
    "title": "Selective state-space scan",
    "category": "scan",
    "note": (
        "Steps and gates are inputs, so that nothing of the recurrence can be computed ahead; late outputs carry "
        "early errors."
    ),
    "inputs": {
        "x": {"fill": "normal", "low": -100.0, "high": 100.0},
        "dt": {"fill": "uniform", "low": 0.001, "high": 0.1},
        "b": {"fill": "normal", "low": -100.0, "high": 100.0},
        "c": {"fill": "normal", "low": -100.0, "high": 100.0},
    },
    "variants": {
        "cpu": [
            {"BATCH": 2, "STEPS": 48, "CHANNELS": 64, "STATES": 16},
            {"BATCH": 3, "STEPS": 13, "CHANNELS": 7, "STATES": 5},
            {"BATCH": 1, "STEPS": 3, "CHANNELS": 5, "STATES": 2},
        ],
        "gpu": [
            {"BATCH": 8, "STEPS": 1024, "CHANNELS": 1024, "STATES": 16},
            {"BATCH": 3, "STEPS": 77, "CHANNELS": 65, "STATES": 7},
        ],
        "interpreter": [
            {"BATCH": 1, "STEPS": 6, "CHANNELS": 8, "STATES": 4},
            {"BATCH": 2, "STEPS": 3, "CHANNELS": 5, "STATES": 3},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, channels: int, states: int) -> None:
        super().__init__()
        self.log_decay = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).repeat(channels, 1))
        self.skip = nn.Parameter(torch.rand(channels) + 0.5)

    def forward(self, x: torch.Tensor, dt: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """x, dt: (batch, steps, channels), b, c: (batch, steps, states) -> (batch, steps, channels)."""
        decay = torch.exp(dt[..., None] * -torch.exp(self.log_decay))
        drive = (dt * x)[..., None] * b[:, :, None, :]
        state = drive[:, 0]
        outputs = [(state * c[:, 0, None, :]).sum(dim=-1)]
        for step in range(1, x.shape[1]):
            state = decay[:, step] * state + drive[:, step]
            outputs.append((state * c[:, step, None, :]).sum(dim=-1))
        return torch.stack(outputs, dim=1) + self.skip * x


def get_inputs():
    x, dt = torch.randn(BATCH, STEPS, CHANNELS), torch.rand(BATCH, STEPS, CHANNELS) * 0.099 + 0.001
    return [x, dt, torch.randn(BATCH, STEPS, STATES), torch.randn(BATCH, STEPS, STATES)]


def get_init_inputs():
    return [CHANNELS, STATES]
