"""Graphs in bfloat16 and float16: kernels of ours, which compute in float32 and round where they store."""

from __future__ import annotations

import pytest
import torch

from kernelwright.codegen import default_schedule

DTYPES = ["bfloat16", "float16"]


def kinds(built):
    return [r["kind"] for r in built.generated.report]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_of_layers_has_kernels_of_its_own(build, dtype):
    layers = "nn.LayerNorm(96), nn.Linear(96, 130), nn.GELU()"
    init = f"self.layers = nn.Sequential({layers}).to(torch.{dtype})"
    built = build("return self.layers(x)", f"torch.randn(70, 96, dtype=torch.{dtype})", init=init)
    assert kinds(built) == ["nest", "own_matmul"]
    built.check()


def test_products_of_halves_are_the_librarys_by_default(build):
    graphs = [
        build("return F.gelu(x @ x.T)", f"torch.randn(40, 24, dtype=torch.{dtype})").graph
        for dtype in ("bfloat16", "float32")
    ]
    assert [default_schedule(graph)["gemm"] for graph in graphs] == ["library", "own"]


FORWARD = """
# x y
return (
    x @ y, x @ y.sum(1), torch.softmax(x, -1), (x * 2 + 1).sum(0), x.argmax(1), x.amax(0), x.mean(), torch.cumsum(x, 1),
    x.float() * 0.5, (x.float() + 1).to(x.dtype), torch.sigmoid(x) * x, F.layer_norm(x, (67,)), x[:, ::2].contiguous(),
)
"""


@pytest.mark.parametrize("dtype", DTYPES)
def test_operators(build, dtype):
    inputs = f"torch.randn(33, 67, dtype=torch.{dtype}), torch.randn(67, 41, dtype=torch.{dtype})"
    built = build(FORWARD.strip(), inputs)
    assert "torch" not in kinds(built)
    built.check()


@pytest.mark.parametrize("dtype", DTYPES)
def test_images(build, dtype):
    init = f"self.c = nn.Conv2d(6, 8, 3, groups=2).to(torch.{dtype})\n"
    init += f"self.d = nn.ConvTranspose2d(6, 8, 3, stride=2).to(torch.{dtype})"
    pools = "F.max_pool2d(x, 2), F.avg_pool2d(x, 3, padding=1), F.avg_pool2d(x, 3, padding=1, count_include_pad=False)"
    forward = f"return F.relu(self.c(x)), self.d(x), {pools}"
    built = build(forward, f"torch.randn(2, 6, 9, 10, dtype=torch.{dtype})", init=init)
    assert kinds(built) == ["own_conv", "own_conv", "pool", "pool", "pool"]
    built.check()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_and_special_values_follow_torch(build, dtype):
    target = getattr(torch, dtype)
    built = build(f"return x.to(torch.{dtype}), x.to(torch.{dtype}).amax(1)", "torch.randn(4, 12)")
    reference, candidate, _ = built.models({})
    special = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e30, -3e38, 1e-30, 6e-8, 65519.9, 65520.0, 1.0]
    ties = [1 + k * 2.0**-9 for k in range(12)]
    x = torch.tensor([special, ties, [1 + k * 2.0**-12 for k in range(12)], [-v for v in ties]])
    for mine, true in zip(candidate(x), reference(x), strict=True):
        assert mine.dtype is target
        assert torch.equal(mine.isnan(), true.isnan())
        assert torch.equal(mine.nan_to_num(), true.nan_to_num())
