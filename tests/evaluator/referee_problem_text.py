"""Pieces of a problem file, around the body of its forward."""

HEAD = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        # the next line is what a test puts here
"""
TAIL = """

def get_inputs():
    return [torch.randn(8, 8)]


def get_init_inputs():
    return []
"""
