"""A stack in bfloat16 with its widths in a list, weights tied between two layers, and a constructor of keywords."""

import torch
import torch.nn as nn

DIMS = [24, 48, 24]
KWARGS = dict(dtype=torch.bfloat16)


def make_layers(dims, last=False, **factory_kwargs):
    layers = []
    for a, b in zip(dims, dims[1:]):
        layers += [nn.LayerNorm(a, **factory_kwargs), nn.Linear(a, b, **factory_kwargs), nn.GELU()]
    return layers if last else layers[:-1]


class Model(nn.Module):
    def __init__(self, dims, tie=True):
        super(Model, self).__init__()
        self.net = nn.Sequential(*make_layers(dims, last=True, **KWARGS))
        self.readout = nn.Linear(dims[-1], dims[-1], bias=False, **KWARGS)
        self.again = nn.Linear(dims[-1], dims[-1], bias=False, **KWARGS)
        if tie:
            self.again.weight = self.readout.weight

    def forward(self, x):
        x = self.net(x)
        return self.again(torch.nn.functional.silu(self.readout(x)))


def get_inputs():
    return [torch.randn(9, DIMS[0]).to(torch.bfloat16)]


def get_init_inputs():
    return [DIMS]
