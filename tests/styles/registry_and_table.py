"""Blocks that a decorator puts into a table, a configuration list, and a table that is filled at module level."""

import functools

import torch
import torch.nn as nn

REGISTRY = {}
CFG = {"width": 12, "stages": ["wide", "gated"]}
CFG["stages"].append("wide")
CFG["eps"] = 1e-3


def register(name):
    def wrap(cls):
        REGISTRY[name] = cls
        return cls

    return wrap


def traced(method):
    @functools.wraps(method)
    def inner(self, *args, **kwargs):
        return method(self, *args, **kwargs)

    return inner


@register("wide")
class Wide(nn.Module):
    def __init__(self, width):
        super(Wide, self).__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width, eps=CFG["eps"])

    @traced
    def forward(self, x):
        return self.norm(x + self.down(torch.relu(self.up(x))))


@register("gated")
class Gated(nn.Module):
    def __init__(self, width):
        super(Gated, self).__init__()
        self.gate = nn.Linear(width, width)

    def forward(self, x):
        return x * torch.sigmoid(self.gate(x))


class Model(nn.Module):
    def __init__(self, width=CFG["width"]):
        super(Model, self).__init__()
        self.blocks = nn.ModuleList([REGISTRY[name](width) for name in CFG["stages"]])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def get_inputs():
    return [torch.randn(7, CFG["width"])]


def get_init_inputs():
    return []
