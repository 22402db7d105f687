"""One step of a graph network: y[t] = relu(node[t] + sum of weight[e] node[source[e]] over edges e with target[e] =
t)."""

import torch
from torch import nn

NODES = 1500
EDGES = 9000
SIZE = 48

PROBLEM = {
    "title": "Sum of messages along edges",
    "category": "irregular",
    "note": (
        "Edges are drawn anew for every call, in no order, and many share a target: lost additions and nodes without "
        "edges show."
    ),
    "inputs": {
        "node": {"fill": "normal", "low": -1000.0, "high": 1000.0},
        "source": {"fill": "structured"},
        "target": {"fill": "structured"},
        "weight": {"fill": "normal", "low": -100.0, "high": 100.0},
    },
    "variants": {
        "cpu": [
            {"NODES": 1500, "EDGES": 9000, "SIZE": 48},
            {"NODES": 131, "EDGES": 517, "SIZE": 37},
            {"NODES": 7, "EDGES": 11, "SIZE": 5},
        ],
        "gpu": [{"NODES": 100000, "EDGES": 1000000, "SIZE": 64}, {"NODES": 5003, "EDGES": 50021, "SIZE": 33}],
        "interpreter": [{"NODES": 32, "EDGES": 128, "SIZE": 16}, {"NODES": 13, "EDGES": 61, "SIZE": 5}],
    },
}


class Model(nn.Module):
    def forward(
        self, node: torch.Tensor, source: torch.Tensor, target: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        """node: (nodes, size), source, target: (edges,) int64, weight: (edges,) -> (nodes, size)."""
        message = weight[:, None] * node[source]
        return torch.relu(node.index_add(0, target, message))


def get_inputs():
    source, target = torch.randint(0, NODES, (EDGES,)), torch.randint(0, NODES, (EDGES,))
    return [torch.randn(NODES, SIZE), source, target, torch.randn(EDGES)]


def get_init_inputs():
    return []
