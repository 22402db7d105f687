"""Attention in the style of a training repository: a dataclass config, an optional mask, annotations of later names."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    n_head: int = 2
    n_embd: int = 16
    bias: bool = True
    widths: list = field(default_factory=lambda: [16, 32])

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head

    def mlp(self, factor: int) -> Mlp:
        return Mlp(self, factor)


class Norm(nn.Module):
    """A layer norm whose bias can be left out."""

    def __init__(self, ndim, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, input):
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_head * config.head_dim, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.register_buffer("tril", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64), persistent=False)
        self.config = config

    def forward(self, x, mask=None):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.config.n_head, self.config.head_dim).transpose(1, 2) for t in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        if mask is not None:
            att = att + mask
        att = att.masked_fill(self.tril[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Mlp(nn.Module):
    def __init__(self, config, factor):
        super().__init__()
        self.net = nn.ModuleDict(
            {
                "c_fc": nn.Linear(config.n_embd, factor * config.n_embd),
                "c_proj": nn.Linear(factor * config.n_embd, config.n_embd),
            }
        )

    def forward(self, x):
        return self.net["c_proj"](F.gelu(self.net["c_fc"](x), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, config=None):
        super().__init__()
        config = config or Config()
        self.ln_1 = Norm(config.n_embd, config.bias)
        self.attn = Attention(config)
        self.ln_2 = Norm(config.widths[0], bias=False)
        self.mlp = config.mlp(2)
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, *, scale=1.0):
        x = x + self.attn(self.ln_1(x), mask)
        return x + self.mlp(self.ln_2(x)) * scale


def get_inputs():
    return [torch.randn(2, 10, 16)]


def get_init_inputs():
    return []
