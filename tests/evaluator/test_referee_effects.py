"""Calls that are more than forward: written inputs and buffers, gradients, random numbers, nested outputs."""

from __future__ import annotations

import pytest

from kernelwright.datasets import parse_problem
from kernelwright.evaluator import Check
from kernelwright.records import Candidate, Status

PROBLEM = """
import torch
import torch.nn as nn

PROBLEM = {{
    "category": "other",
    "inputs": {{"x": {{"fill": "normal", "low": -1e3, "high": 1e3}}}},
    "variants": {{"cpu": [{{"ROWS": 32, "COLS": 96}}, {{"ROWS": 5, "COLS": 33}}]}},
    {meta}
}}
ROWS = 32
COLS = 96


class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
{init}

    def forward(self, x):
{forward}


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return [COLS]
"""


def indented(text: str) -> str:
    return "\n".join(" " * 8 + line for line in text.splitlines())


def made(name: str, forward: str, init: str = "pass", meta: str = ""):
    source = PROBLEM.format(meta=meta, init=indented(init), forward=indented(forward))
    return parse_problem(source, id=f"test/level1/{name}", suite="test", level=1, name=name)


def control(problem, **changes: str) -> str:
    """The reference as a candidate, with some of its text replaced."""
    source = problem.source.replace("class Model(", "class ModelNew(")
    for old, new in changes.items():
        assert CHANGES[old] in source
        source = source.replace(CHANGES[old], new)
    return source


CHANGES = {
    "add": "x.add_(1.5)",
    "result": "return x * 2",
    "update": "self.total.mul_(0.9).add_(x.sum(0), alpha=0.1)",
    "square": "x * x * self.scale",
    "dropout": "torch.nn.functional.dropout(x, 0.25, training=True)",
    "relu": "torch.relu(x)",
}

WRITES_INPUT = made("writes_input", "x.add_(1.5)\nreturn x * 2")
WRITES_BUFFER = made(
    "writes_buffer",
    "self.total.mul_(0.9).add_(x.sum(0), alpha=0.1)\nreturn x - self.total",
    'self.register_buffer("total", torch.zeros(cols))',
    '"mode": "train",',
)
BACKWARD = made(
    "backward",
    "return torch.relu(x * x * self.scale)",
    "self.scale = nn.Parameter(torch.rand(cols) + 0.5)",
    '"backward": True,',
)
SEEDED = made("seeded", CHANGES["dropout"].join(["return ", " + x"]), meta='"randomness": "seeded",')
DISTRIBUTION = made("distribution", "return " + CHANGES["dropout"], meta='"randomness": "distribution",')
RELU = made("relu", "return torch.relu(x) - 1")
FINITE = '"low": -1e3, "high": 1e3'
NON_FINITE = parse_problem(
    RELU.source.replace(FINITE, '"non_finite": True'), id="test/level1/n", suite="test", level=1, name="non_finite"
)
NESTED = made("nested", 'return {"a": (x + 1, [x > 0]), "b": torch.argmax(x, dim=-1)}')


@pytest.fixture(scope="module")
def judge(referee):
    sessions = {}

    def judge(problem, source: str, **options):
        if problem.id not in sessions:
            sessions[problem.id] = referee.open(problem, baselines=("eager",))
        candidate = Candidate(problem_id=problem.id, source=source, backend="cpp")
        return sessions[problem.id].judge(candidate, control=True, **options).verdict

    yield judge
    for session in sessions.values():
        session.close()


@pytest.mark.parametrize(
    "problem",
    [WRITES_INPUT, WRITES_BUFFER, BACKWARD, SEEDED, DISTRIBUTION, NESTED, NON_FINITE],
    ids=lambda problem: problem.name,
)
def test_the_reference_itself_passes_and_is_timed(judge, problem):
    verdict = judge(problem, control(problem))
    assert verdict.status is Status.PASSED, verdict.reason
    assert verdict.timing is not None
    assert 0.2 < verdict.speedup("eager").median < 5


@pytest.mark.untimed
@pytest.mark.parametrize(
    ("problem", "changes"),
    [
        (WRITES_INPUT, {"add": "x = x + 1.5"}),
        (WRITES_INPUT, {"add": "x.add_(1.25)"}),
        (WRITES_BUFFER, {"update": "self.total = self.total * 0.9 + x.sum(0) * 0.1"}),
        (WRITES_BUFFER, {"update": "self.total.mul_(0.8).add_(x.sum(0), alpha=0.1)"}),
        (BACKWARD, {"square": "x * x.detach() * self.scale"}),
        (BACKWARD, {"square": "x * x * self.scale.detach()"}),
        (SEEDED, {"dropout": "torch.nn.functional.dropout(x, 0.2, training=True)"}),
        (SEEDED, {"dropout": "x * 0.75"}),
        (DISTRIBUTION, {"dropout": "torch.nn.functional.dropout(x, 0.15, training=True)"}),
        (DISTRIBUTION, {"dropout": "x"}),
    ],
)
def test_what_belongs_to_the_call_is_compared(judge, problem, changes):
    verdict = judge(problem, control(problem, **changes), depth=Check())
    assert verdict.status in (Status.INCORRECT_NUMERICAL, Status.INCORRECT_SHAPE, Status.RUNTIME_ERROR), verdict.reason
    assert verdict.failed_stage == "check"


@pytest.mark.untimed
def test_nan_and_infinities_are_inputs_where_the_problem_says_so(judge):
    for change in ("torch.where(x > 0, x, 0.0)", "torch.relu(x).clamp(max=3e38)"):
        assert judge(RELU, control(RELU, relu=change), depth=Check()).passed
        verdict = judge(NON_FINITE, control(NON_FINITE, relu=change), depth=Check())
        assert verdict.status is Status.INCORRECT_NUMERICAL
        assert "non-finite" in verdict.reason


@pytest.mark.untimed
def test_writing_an_input_that_the_reference_leaves_alone_is_no_pass(judge):
    verdict = judge(NESTED, control(NESTED).replace("x + 1,", "x.add_(1),"), depth=Check())
    assert verdict.status is Status.RUNTIME_ERROR
    assert verdict.failed_stage == "check"


@pytest.mark.untimed
def test_a_random_reference_may_be_met_by_other_draws_of_the_same_distribution(judge):
    other = control(DISTRIBUTION, dropout="x * (torch.rand(x.shape) >= 0.25) / 0.75")
    assert judge(DISTRIBUTION, other, depth=Check()).passed
    frozen = control(DISTRIBUTION, dropout="x * (torch.arange(x.numel()).reshape(x.shape) % 4 != 0) / 0.75")
    assert judge(DISTRIBUTION, frozen, depth=Check()).status is Status.INCORRECT_NUMERICAL
