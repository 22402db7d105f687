"""Pre-norm transformer block: x = x + attention(layer_norm(x)), y = x + mlp(layer_norm(x)), no mask, no dropout."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 2
TOKENS = 96
FEATURES = 64
HEADS = 4

PROBLEM = {
    "title": "Transformer block (pre-norm)",
    "category": "block",
    "note": (
        "Two normalisations, attention and two layers in one: a part that is left out changes every output, since "
        "nothing is near zero."
    ),
    "heavy_ops": ["aten.mm", "aten.addmm", "aten.bmm"],
    "inputs": {"x": {"fill": "normal", "low": -1e3, "high": 1e3}},
    "variants": {
        "cpu": [
            {"BATCH": 2, "TOKENS": 96, "FEATURES": 64, "HEADS": 4},
            {"BATCH": 1, "TOKENS": 45, "FEATURES": 60, "HEADS": 5},
            {"BATCH": 3, "TOKENS": 5, "FEATURES": 18, "HEADS": 3},
        ],
        "gpu": [
            {"BATCH": 8, "TOKENS": 512, "FEATURES": 768, "HEADS": 12},
            {"BATCH": 3, "TOKENS": 197, "FEATURES": 320, "HEADS": 5},
        ],
        "interpreter": [
            {"BATCH": 1, "TOKENS": 32, "FEATURES": 32, "HEADS": 2},
            {"BATCH": 2, "TOKENS": 11, "FEATURES": 18, "HEADS": 3},
        ],
    },
}


class Model(nn.Module):
    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(features)
        self.qkv = nn.Linear(features, 3 * features)
        self.out = nn.Linear(features, features)
        self.norm2 = nn.LayerNorm(features)
        self.up = nn.Linear(features, 4 * features)
        self.down = nn.Linear(4 * features, features)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, features = x.shape
        size = features // self.heads
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, size).permute(2, 0, 3, 1, 4)
        weights = torch.softmax((q @ k.transpose(-2, -1)) * size**-0.5, dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, tokens, features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, tokens, features) -> (batch, tokens, features)."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def get_inputs():
    return [torch.randn(BATCH, TOKENS, FEATURES)]


def get_init_inputs():
    return [FEATURES, HEADS]
