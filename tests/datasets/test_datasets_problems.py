"""The built-in suite keeps the contract: every problem, every variant, every declaration."""

from __future__ import annotations

import ast
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernelwright.datasets import _lint_worker, lint, load_suite
from kernelwright.datasets import runtime as _runtime

PROBLEMS = load_suite()
HEAVY = {"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.mv", "aten.convolution"}
CATEGORIES = 14
# With a guard that ordinary inputs do not need, or a mask that is computed from positions alone.
GUARDED = {"l2_normalize", "contrastive_loss", "alibi_causal_softmax", "sliding_window_attention"}


class Operators(TorchDispatchMode):
    """Records the names of the operators that run."""

    def __init__(self):
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func._schema.name.replace("::", "."))
        return func(*args, **(kwargs or {}))


class Built:
    """The models of a problem with their inputs and outputs, each made once."""

    def __init__(self, problem):
        self.problem = problem
        self._made = {}

    def __call__(self, device_class, at):
        """The model of a variant, its inputs, and what it gives for them."""
        key = device_class, at
        if key not in self._made:
            module = _runtime.load_reference(self.problem.source, self.problem.meta.variants[device_class][at])
            model = _runtime.make_model(module, _runtime.make_init_inputs(module, 1), mode=self.problem.meta.mode)
            _runtime.randomise_parameters(model, 1)
            inputs = _runtime.make_inputs(module, 1)
            with torch.no_grad():
                self._made[key] = model, inputs, _runtime.run_forward(model, inputs)
        return self._made[key]


def forward_parameters(problem) -> list[str]:
    tree = ast.parse(problem.source)
    model = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model")
    forward = next(n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "forward")
    return [argument.arg for argument in forward.args.args[1:]]


def results(model, inputs) -> torch.Tensor:
    """All that a call leaves behind: its outputs, and in training the buffers that it writes."""
    outputs = list(_runtime.run_forward(model, inputs))
    written = list(model.buffers()) if model.training else []
    return torch.cat([value.flatten().double() for value in (*outputs, *written)])


def test_the_suite_has_a_hundred_problems_of_many_kinds():
    assert len(PROBLEMS) == len({problem.source for problem in PROBLEMS}) == 100
    assert [[p.number for p in PROBLEMS if p.level == level] for level in (1, 2, 3)] == [
        list(range(1, 51)),
        list(range(1, 31)),
        list(range(1, 21)),
    ]
    assert len({problem.meta.category for problem in PROBLEMS}) >= CATEGORIES
    assert sum(problem.meta.backward for problem in PROBLEMS) >= 5
    assert sum(problem.meta.dtype in ("bfloat16", "float16") for problem in PROBLEMS) >= 4
    assert sum(problem.meta.category == "irregular" for problem in PROBLEMS) >= 7


def the_metadata_is_complete(problem, built):
    meta = problem.meta
    assert meta.title
    assert meta.category != "other"
    assert len(meta.note.split()) >= 12
    assert list(meta.inputs) == forward_parameters(problem)
    assert ast.get_docstring(ast.parse(problem.source))
    assert len(meta.variants["cpu"]) >= 3
    assert len(meta.variants["gpu"]) >= 2
    assert len(meta.variants["interpreter"]) >= 2
    for domain in meta.inputs.values():
        assert domain.fill == "structured" or -math.inf < domain.low < domain.high < math.inf


def the_files_own_constants_are_the_timed_variant(problem, built):
    constants = ast.parse(problem.source).body
    values = {n.targets[0].id: ast.literal_eval(n.value) for n in constants if isinstance(n, ast.Assign)}
    timed = problem.meta.variants["cpu"][0]
    assert {name: values[name] for name in timed} == timed


def every_small_variant_runs_and_has_shapes_of_its_own(problem, built):
    shapes = []
    for device_class in ("cpu", "interpreter"):
        for at in range(len(problem.meta.variants[device_class])):
            _, inputs, outputs = built(device_class, at)
            assert all(bool(torch.isfinite(output).all()) for output in outputs)
            shapes.append(tuple(tuple(value.shape) for value in inputs))
            elements = sum(value.numel() for value in (*inputs, *outputs))
            assert device_class == "cpu" or elements <= 65_536
    assert len(set(shapes)) == len(shapes)
    sizes = {size for shape in shapes for one in shape for size in one}
    assert any(size % 8 for size in sizes)


def a_timed_slot_is_at_most_eight_megabytes(problem, built):
    _, inputs, outputs = built("cpu", 0)
    assert sum(value.nbytes for value in (*inputs, *outputs)) <= 8 << 20


def gpu_variants_are_larger(problem, built):
    def elements(variant):
        module = _runtime.load_reference(problem.source, variant)
        with torch.device("meta"):
            return sum(math.prod(value.shape) for value in module.get_inputs())

    assert elements(problem.meta.variants["gpu"][0]) > elements(problem.meta.variants["cpu"][0])


def the_reference_is_defined_over_its_whole_domain(problem, built):
    model, inputs, _ = built("cpu", len(problem.meta.variants["cpu"]) - 1)
    for bound in ("low", "high"):
        stretched = []
        for value, domain in zip(inputs, problem.meta.inputs.values(), strict=True):
            limit = abs(getattr(domain, bound))
            fill = domain.fill != "structured"
            stretched.append((value / value.abs().max() * limit).to(value.dtype) if fill else value)
        with torch.no_grad():
            assert all(bool(torch.isfinite(o).all()) for o in _runtime.run_forward(model, stretched))


def the_declared_heavy_operators_are_those_that_run(problem, built):
    model, inputs, _ = built("interpreter", 0)
    with torch.no_grad(), Operators() as operators:
        _runtime.run_forward(model, inputs)
    assert operators.names & HEAVY <= set(problem.meta.heavy_ops)
    assert bool(operators.names & HEAVY) == bool(problem.meta.heavy_ops)


def every_parameter_matters_once_randomised(problem, built):
    model, inputs, _ = built("interpreter", 0)
    with torch.no_grad():
        state = {name: value.clone() for name, value in model.state_dict().items()}
        before = results(model, inputs)
        for name, kept in state.items():
            if not kept.is_floating_point():
                continue
            model.load_state_dict({**state, name: kept + torch.linspace(0.1, 0.9, kept.numel()).view_as(kept)})
            assert not torch.allclose(results(model, inputs), before, rtol=1e-4, atol=1e-6), name
            model.load_state_dict(state)


def lint_finds_no_weakness(problem, built):
    findings = lint(problem, lambda entry, payload: _lint_worker.lint(payload), "cpu")
    told = ["forward-only"] * problem.meta.backward + ["redundant-work"] * (problem.name in GUARDED)
    assert sorted({(finding.severity, finding.rule) for finding in findings}) == [("info", rule) for rule in told]


CONTRACT = (
    the_metadata_is_complete,
    the_files_own_constants_are_the_timed_variant,
    every_small_variant_runs_and_has_shapes_of_its_own,
    a_timed_slot_is_at_most_eight_megabytes,
    gpu_variants_are_larger,
    the_reference_is_defined_over_its_whole_domain,
    the_declared_heavy_operators_are_those_that_run,
    every_parameter_matters_once_randomised,
    lint_finds_no_weakness,
)


@pytest.mark.parametrize("problem", PROBLEMS, ids=[p.id.partition("/")[2] for p in PROBLEMS])
def test_a_problem_keeps_the_contract(problem):
    built = Built(problem)
    for clause in CONTRACT:
        clause(problem, built)
