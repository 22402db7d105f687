"""Operators that are read off a reference's text, without running it."""

from __future__ import annotations

import pytest

from kernelwright.datasets import find_problem, operator_category, operators_of


def read(
    body: str, head: str = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
) -> dict[str, int]:
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    inputs = "def get_inputs():\n    return [torch.randn(8).softmax(0)]\n"
    return dict(operators_of(f"{head}class Model(nn.Module):\n    def forward(self, x):\n{lines}\n{inputs}"))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("return torch.softmax(x, dim=-1)", {"softmax": 1}),
        ("return F.relu(x @ x) + x", {"add": 1, "matmul": 1, "relu": 1}),
        ("return nn.LeakyReLU()(nn.LayerNorm(8)(nn.RMSNorm(8)(x)))", {"layer_norm": 1, "leaky_relu": 1, "rms_norm": 1}),
        ("return nn.GELU()(nn.Conv2d(1, 1, 1)(nn.BatchNorm2d(1)(x)))", {"batch_norm": 1, "conv2d": 1, "gelu": 1}),
        ("return x.sum(1).clamp_(0).view(3)", {"clamp": 1, "sum": 1, "view": 1}),
        ("return torch.ops.aten.native_layer_norm.default(x)", {"layer_norm": 1}),
        ("return torch.ops.aten._softmax.default(x, -1, False)", {"softmax": 1}),
        ("return F.cross_entropy(x, x)", {"cross_entropy_loss": 1}),
        ("return self.sum(torch.empty_like(x), max(1, 2), open(x).read())", {}),
    ],
)  # fmt: skip
def test_operators_have_their_names_whatever_they_are_written_as(body, found):
    assert read(body) == found


def test_what_makes_inputs_is_no_operator_and_what_does_not_parse_has_none():
    assert "softmax" not in read("return x")
    assert operators_of("class Model(:") == {}


def test_names_that_a_file_gives_to_torch_are_followed():
    assert read("return act.relu(mm(x, x))", "from torch import nn, mm\nfrom torch.nn import functional as act\n") == {
        "mm": 1,
        "relu": 1,
    }


def test_built_in_problems_have_the_operators_that_they_are_named_after():
    assert dict(operators_of(find_problem("level3/mlp_block").source)) == {
        "add": 1,
        "gelu": 1,
        "layer_norm": 1,
        "linear": 2,
    }


def test_kinds():
    named = {"linear": "product", "log_softmax": "softmax", "conv_transpose2d": "convolution", "cumsum": "scan",
             "adaptive_avg_pool2d": "pooling", "vector_norm": "normalisation", "transpose": "view", "tanh": "pointwise",
             "amax": "reduction", "frobnicate": "other"}  # fmt: skip
    assert {name: operator_category(name) for name in named} == named
