"""Every choice of a schedule gives a right candidate, and shows in its text."""

from __future__ import annotations

import pytest
import torch

from kernelwright.codegen import CodegenError, cost, default_schedule, generate, schedule_space

BLOCK = """
h = F.layer_norm(x, (x.shape[-1],))
h = F.gelu(F.linear(h, self.w, self.b)) @ self.m
p = torch.softmax(h @ h.transpose(1, 2) * 0.3, -1)
c = F.relu(F.conv2d(p.unsqueeze(1), self.k, padding=1))
return p.sum(1), c * 2, (p * p).mean(), x.amax(1)
"""
INIT = """
self.w = nn.Parameter(torch.randn(40, 600) * 0.05)
self.b = nn.Parameter(torch.randn(40))
self.m = nn.Parameter(torch.randn(40, 600) * 0.1)
self.k = nn.Parameter(torch.randn(3, 1, 3, 3))
"""
INPUT = "torch.randn(2, 21, 600)"


@pytest.fixture(scope="module")
def space():
    return {
        "fusion": ["none", "rows"], "gemm": ["library"], "conv": ["library"], "tile": ["12x2", "6x3"],
        "scratch": ["recompute"],
        "tails": ["scalar"],
        "in_place": [False], "prefetch": [False], "reciprocal_math": [True], "VECTOR_BITS": [256], "UNROLL": [True],
        "BLOCK": [64], "GROUP_KB": [64], "STRIPE": [32, 0],
    }  # fmt: skip


@pytest.mark.parametrize(
    "schedule",
    [
        {"fusion": "none"},
        {"fusion": "rows", "gemm": "library", "scratch": "recompute"},
        {"conv": "library", "tile": "12x2", "BLOCK": 64, "prefetch": False},
        {"tile": "6x3", "GROUP_KB": 64, "VECTOR_BITS": 256, "STRIPE": 32},
        {"tails": "scalar", "VECTOR_BITS": 256},
        {"gemm": "library", "in_place": False, "UNROLL": True, "STRIPE": 0, "reciprocal_math": True},
    ],
    ids=lambda s: "-".join(f"{k}={v}" for k, v in s.items()),
)
def test_choices_keep_the_result(build, schedule):
    built = build(BLOCK, INPUT, init=INIT, schedule=schedule)
    assert built.generated.knobs.items() >= schedule.items()
    built.check(draws=16)


@pytest.mark.parametrize("fusion", ["full", "rows", "none"])
def test_what_is_computed_in_the_memory_of_a_view_is_returned_in_its_own_shape(build, fusion):
    init = "self.norm = nn.GroupNorm(3, 6)"
    built = build("return F.hardtanh(self.norm(x))", "torch.randn(2, 6, 5, 5)", init=init, schedule={"fusion": fusion})
    built.check()


def test_space_names_only_what_matters(build, space):
    graph = build(BLOCK, INPUT, init=INIT).graph
    found = schedule_space(graph)
    assert set(found) == set(space)
    assert all(set(values) <= set(found[name]) for name, values in space.items())
    assert default_schedule(graph) == {name: values[0] for name, values in found.items()}
    small = schedule_space(build("return x * 2", "torch.randn(3, 5)").graph)
    assert "gemm" not in small
    assert "fusion" not in small


def test_texts_differ_with_the_structure(build):
    graph = build(BLOCK, INPUT, init=INIT).graph
    full, none = generate(graph), generate(graph, {"fusion": "none"})
    assert full.source.count('extern "C"') < none.source.count('extern "C"')
    assert full.bytes_moved < none.bytes_moved
    assert "F.linear" in generate(graph, {"gemm": "library"}).source
    assert "VECTOR_BITS = 256" in generate(graph, {"VECTOR_BITS": 256}).source
    assert generate(graph).source == full.source


def test_unknown_choices_are_refused(build):
    graph = build("return x * 2", "torch.randn(3, 5)").graph
    with pytest.raises(CodegenError, match="unknown choice"):
        generate(graph, {"colour": "red"})
    with pytest.raises(CodegenError, match="fusion cannot be"):
        generate(graph, {"fusion": "sometimes"})


def test_cost_counts_bytes_and_flops(build):
    graph = build(
        "return F.relu(F.linear(x, self.w))", "torch.randn(10, 20)", init="self.w = nn.Parameter(torch.randn(30, 20))"
    ).graph
    found = cost(graph)
    assert found["bytes_least"] == 4 * (10 * 20 + 30 * 20 + 10 * 30)
    assert found["flops"] == 2 * 10 * 20 * 30 + 10 * 30
    assert found["regions"][0]["bytes_written"] == 4 * 10 * 30
    assert found["bytes_moved"] == found["bytes_least"]


ROWS = """
return torch.softmax(x, -1), F.layer_norm(x, (x.shape[1],)), x.amin(1), x.logsumexp(1), x.sum(1), F.gelu(x[:, 1:])
"""


@pytest.mark.parametrize("columns", [3, 17, 30, 47, 63])
@pytest.mark.parametrize("bits", [512, 256])
def test_masks_hide_what_lies_beyond_a_short_row(build, columns, bits):
    built = build(ROWS, f"torch.randn(19, {columns})", schedule={"VECTOR_BITS": bits})
    assert "VECTOR_LANES" in built.generated.source
    built.check()
    wild = torch.randn(19, columns)
    wild[3, -1], wild[4, 0], wild[5] = float("nan"), float("inf"), -1e4
    built.check(inputs=[wild])


def test_the_default_vectors_are_as_wide_as_the_rows_allow(build):
    short, even, long = (build("return x.sum(1)", f"torch.randn(40, {n})").graph for n in (30, 96, 500))
    assert [default_schedule(graph)["VECTOR_BITS"] for graph in (short, even, long)] == [256, 512, 512]
    assert ["tails" in default_schedule(graph) for graph in (short, even, long)] == [True, False, False]
    assert schedule_space(short)["VECTOR_BITS"] == [256, 512]
