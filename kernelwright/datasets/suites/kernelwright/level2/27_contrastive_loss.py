"""Contrastive loss of pairs (Radford et al., 2021): cross-entropy of cosine similarities / 0.07, both ways; the
diagonal is right."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 256
SIZE = 128

PROBLEM = {
    "title": "Contrastive loss of pairs of embeddings",
    "category": "loss",
    "note": (
        "Each of rows^2 similarities takes part in two normalisations, by rows and by columns; one scalar answers for "
        "all of them."
    ),
    "heavy_ops": ["aten.mm"],
    "inputs": {
        "first": {"fill": "normal", "low": -100.0, "high": 100.0},
        "second": {"fill": "normal", "low": -100.0, "high": 100.0},
    },
    "variants": {
        "cpu": [
            {"ROWS": 256, "SIZE": 128},
            {"ROWS": 67, "SIZE": 45},
            {"ROWS": 3, "SIZE": 7},
        ],
        "gpu": [{"ROWS": 8192, "SIZE": 512}, {"ROWS": 1021, "SIZE": 333}],
        "interpreter": [{"ROWS": 32, "SIZE": 16}, {"ROWS": 13, "SIZE": 5}],
    },
}


class Model(nn.Module):
    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """first, second: (rows, size), where rows belong together -> scalar."""
        similar = torch.matmul(F.normalize(first, dim=1), F.normalize(second, dim=1).T) / 0.07
        label = torch.arange(first.shape[0], device=first.device)
        return 0.5 * (F.cross_entropy(similar, label) + F.cross_entropy(similar.T, label))


def get_inputs():
    shared = torch.randn(ROWS, SIZE)
    return [shared + torch.randn(ROWS, SIZE), shared + torch.randn(ROWS, SIZE)]


def get_init_inputs():
    return []
