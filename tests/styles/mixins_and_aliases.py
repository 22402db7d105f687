"""A base class and a mixin, the model under another name, static methods, and numbers as class attributes."""

import torch
from torch import Tensor, nn

try:
    from torch.nn.functional import scaled_dot_product_attention as sdpa
except ImportError:
    sdpa = None

if torch.cuda.is_available():
    DTYPE = torch.float32
else:
    DTYPE = torch.float32


class Base(nn.Module):
    eps: float = 1e-6
    groups = 2

    def __init__(self, *args, **kwargs):
        super().__init__()
        self.build(*args, **kwargs)

    def build(self):
        raise NotImplementedError


class Scaled:
    @staticmethod
    def width_of(n: int) -> int:
        return 8 * n

    @classmethod
    def default_scale(cls):
        return cls.SCALE


class RMS(nn.Module):
    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.g = nn.Parameter(torch.ones(dim, dtype=DTYPE))
        self.eps = eps

    def _norm(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x: Tensor) -> Tensor:
        return self._norm(x) * self.g


class Net(Scaled, Base):
    SCALE = 0.5

    def build(self, n: int, *, depth: int = 2):
        width = self.width_of(n)
        self.norms = nn.ModuleList(RMS(width, self.eps) for _ in range(depth))
        self.add_module("out-proj", nn.Linear(width, width))
        self.scale = self.default_scale()

    def forward(self, x: Tensor, *extra) -> Tensor:
        for norm in self.norms:
            x = norm(x) + x
        x = getattr(self, "out-proj")(x)
        return sum(extra, x) * self.scale


Model = Net


def get_inputs():
    return [torch.randn(5, 16, dtype=DTYPE), torch.randn(5, 16), torch.randn(16)]


def get_init_inputs():
    return [2]
