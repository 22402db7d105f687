"""Candidates with gradients, and candidates that write buffers."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from conftest import assert_close, problem
from test_codegen_triton import run

from kernelwright.codegen import Graph, generate, inductor_seed
from kernelwright.codegen._capture import capture_entry
from kernelwright.datasets import find_problem, load_suite
from kernelwright.datasets.runtime import load_reference, make_init_inputs, make_inputs, make_model

CASES = {
    "pointwise": ("# x y\nreturn torch.tanh(x) * y.exp(), x * 2", "torch.randn(5, 33), torch.randn(33)", ""),
    "layer norm": ("return self.n(x)", "torch.randn(9, 40)", "self.n = nn.LayerNorm(40)"),
    "linear": ("return F.gelu(self.l(x))", "torch.randn(7, 20)", "self.l = nn.Linear(20, 12)"),
    "shared": ("h = F.silu(self.l(x))\nreturn self.l(h)", "torch.randn(7, 12)", "self.l = nn.Linear(12, 12)"),
    "loss": ("# x t\nreturn F.cross_entropy(x, t, label_smoothing=0.1)", "torch.randn(9, 7), torch.arange(9) % 7", ""),
    "softmax": ("# x y\nreturn [x.softmax(-1) @ y]", "torch.randn(2, 5, 8), torch.randn(2, 8, 6)", ""),
    "convolution": ("return self.c(x).relu()", "torch.randn(2, 3, 9, 9)", "self.c = nn.Conv2d(3, 4, 3, bias=False)"),
    "batch norm": ("return self.n(x)", "torch.randn(6, 5, 4, 4)", "self.n = nn.BatchNorm2d(5)"),
    "unused": ("# x y\nreturn x.square().sum()", "torch.randn(4, 6), torch.randn(3)", "self.l = nn.Linear(2, 2)"),
}  # fmt: skip
BACKWARD = [problem.id for problem in load_suite("kernelwright") if problem.meta.backward]


def captured(source: str, **payload) -> Graph:
    reply = capture_entry({"source": source, "variant": {}, **payload})
    assert reply["ok"], reply
    return Graph.from_json(json.dumps(reply))


def executed(graph: Graph) -> types.SimpleNamespace:
    """The C++ candidate of a graph as a module."""
    made = {"__name__": "candidate"}
    exec(compile(generate(graph).source, "candidate.py", "exec"), made)
    return types.SimpleNamespace(**made)


def models(source: str, made: Any, *, mode: str = "eval", variant: Mapping[str, Any] = {}):
    """The reference, the candidate of a module (or of a graph) and inputs."""
    module = load_reference(source, dict(variant))
    init = make_init_inputs(module, 0)
    reference = make_model(module, init).train(mode == "train")
    made = executed(made) if isinstance(made, Graph) else made
    candidate = made.ModelNew(*init).train(mode == "train")
    candidate.load_state_dict(reference.state_dict())
    return reference, candidate, make_inputs(module, 1)


def called(model, inputs, dtype=torch.float32):
    """Outputs and gradients of a call; None for a gradient that nothing gives."""
    inputs = [i.to(dtype).requires_grad_() if i.is_floating_point() else i for i in inputs]
    outputs = model(*inputs)
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    torch.manual_seed(5)
    cotangents = [torch.randn(o.shape).to(dtype) for o in outputs]
    leaves = [*(i for i in inputs if i.requires_grad), *model.parameters()]
    return outputs, torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True)


def compare(candidate, reference, given, dtype=torch.float32):
    """Outputs and gradients against those of the reference in float64; each is None where the other is."""
    outputs, gradients = called(candidate, given, dtype)
    wanted, slopes = called(reference, given, dtype)
    exact = called(reference.double(), given, torch.float64)
    assert [g is None for g in gradients] == [g is None for g in slopes]
    for mine, eager, true in zip([*outputs, *gradients], [*wanted, *slopes], [*exact[0], *exact[1]], strict=True):
        if mine is not None:
            assert_close(mine.detach(), eager.detach(), true.detach())


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_reference(case):
    forward, inputs, init = CASES[case]
    source = problem(forward, inputs, init=init)
    reference, candidate, given = models(source, captured(source, backward=True))
    compare(candidate, reference, given)


@pytest.mark.parametrize("name", BACKWARD)
def test_problems_with_gradients_match_in_every_variant(name):
    problem, made = find_problem(name), {"__name__": "candidate"}
    variants = [dict(variant) for variant in problem.meta.variants_for("cpu")]
    payload = {"source": problem.source, "variant": variants[0], "variants": variants, "backward": True}
    generated = generate(Graph.from_json(json.dumps(capture_entry(payload))))
    assert all(step["kind"] != "torch" for step in generated.report)
    exec(compile(generated.source, "candidate.py", "exec"), made)
    for variant in variants:
        module = load_reference(problem.source, variant)
        init = make_init_inputs(module, 0)
        reference, candidate = make_model(module, init), made["ModelNew"](*init)
        candidate.load_state_dict(reference.state_dict())
        compare(candidate, reference, make_inputs(module, 1))


def test_cotangents_may_lie_in_memory_as_they_like():
    source = problem("return torch.tanh(x)", "torch.randn(6, 8)")
    _, candidate, (x,) = models(source, captured(source, backward=True))
    x.requires_grad_()
    cotangent = torch.randn(8, 6).T
    (found,) = torch.autograd.grad(candidate(x), x, cotangent)
    torch.testing.assert_close(found, cotangent * (1 - torch.tanh(x).square()))


def test_sums_down_columns_do_not_go_through_memory():
    """The gradients of a layer norm's weight and bias are one pass over what the rows read as well."""
    forward, inputs, init = CASES["layer norm"]
    report = generate(captured(problem(forward, inputs, init=init), backward=True)).report
    assert [step["kind"] for step in report] == ["nest"] * 3


def test_what_a_training_norm_writes_is_what_torch_writes():
    source = problem("return self.n(x)", "torch.randn(6, 5, 4, 3)", init="self.n = nn.BatchNorm2d(5, momentum=0.3)")
    reference, candidate, inputs = models(source, captured(source, mode="train"), mode="train")
    for _ in range(2):
        mine, eager = candidate(*inputs), reference(*inputs)
        torch.testing.assert_close(mine, eager)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(candidate.state_dict()[name], value)
    assert reference.n.num_batches_tracked == 2


def test_a_counter_is_written():
    source = problem("self.n.add_(1)\nreturn x + self.n", "torch.randn(3)", init="self.n = nn.Buffer(torch.ones(3))")
    _, candidate, (x,) = models(source, captured(source))
    assert torch.equal(candidate(x), x + 2)
    assert torch.equal(candidate.n, torch.full((3,), 2.0))


@pytest.fixture(scope="module")
def in_triton(taken):
    return run("codegen_triton_gradients.py", *taken("name"))


@pytest.mark.matrix
@pytest.mark.parametrize("name", [*CASES, *BACKWARD, *(f"seed of {name}" for name in [*CASES, *BACKWARD]), "writes"])
def test_triton_candidate(in_triton, name):
    assert in_triton[name] == "ok", in_triton[name]


@pytest.mark.parametrize("more", [{"backward": True}, {"mode": "train"}])
def test_what_has_only_the_way_there_is_made_of_no_such_graph(more):
    source = problem("return self.n(x)", "torch.randn(6, 5, 4, 3)", init="self.n = nn.BatchNorm2d(5)")
    graph = captured(source, **more)
    assert inductor_seed(graph, {"ok": True, "variants": [], "vector_bits": 512}) is None
