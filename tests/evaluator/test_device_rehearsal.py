"""The way in which a device is checked and timed, rehearsed on this CPU: copies of the inputs, digests of the outputs."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from referee_candidates import RIGHT, candidate
from referee_small_problems import LINEAR_PROBLEM, SOFTMAX_PROBLEM, make_problem

from kernelwright.evaluator import Referee
from kernelwright.evaluator._clock import DoorLibrary
from kernelwright.records import Candidate, Stage, Status

LINEAR = """
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 48)

    def forward(self, x):
        return torch.relu(self.linear(x))
"""
STALE = LINEAR.replace(
    "return torch.relu(self.linear(x))",
    """self.kept = getattr(self, "kept", self.linear.weight.clone())
        return torch.relu(torch.nn.functional.linear(x, self.kept, self.linear.bias))""",
)


@pytest.fixture(scope="module")
def rehearsal(referee):
    settings = referee.settings.with_values(device="rehearsal", looks=(3, 6), noise_bound=0.3)
    with Referee(settings) as made:
        yield made


@pytest.fixture(scope="module")
def session(rehearsal):
    with rehearsal.open(make_problem(SOFTMAX_PROBLEM, "softmax"), baselines=("eager",)) as opened:
        yield opened


@pytest.fixture
def judge(session):
    def judged(source, **options):
        return session.judge(Candidate(problem_id=session.problem.id, source=source, backend="cpp"), **options)

    return judged


def test_a_right_kernel_is_timed_and_nothing_is_confirmed(judge):
    evaluation = judge(RIGHT)
    verdict = evaluation.verdict
    assert (verdict.status, verdict.stage) == (Status.PASSED, Stage.TIMED), verdict.reason
    assert not verdict.timing.confirmed
    assert {s.role for s in evaluation.samples} == {"candidate", "eager"}
    assert 0.05 < verdict.timing.speedup["eager"].median < 20
    assert evaluation.environment.device == "rehearsal on this CPU"


def test_a_confirmation_on_a_device_stays_unconfirmed(judge):
    verdict = judge(RIGHT, confirm=True).verdict
    assert (verdict.status, verdict.stage) == (Status.PASSED, Stage.TIMED), verdict.reason
    assert not verdict.timing.confirmed
    assert verdict.timing.processes == 5


@pytest.mark.parametrize(
    ("source", "status"),
    [
        (candidate("y.zero_()"), Status.INCORRECT_NUMERICAL),
        (candidate("y = y[:, :-1]"), Status.INCORRECT_SHAPE),
        (candidate("y = (y, y)"), Status.INCORRECT_SHAPE),
        (candidate("y = ()"), Status.INCORRECT_SHAPE),
        (candidate("y = y.double()"), Status.INCORRECT_DTYPE),
        (candidate("y = y.t().contiguous().t()"), None),
        (candidate("y = torch.cat([y, y], 1)[:, : y.shape[1]]"), None),
        (candidate("y[0, 0] = float('nan')"), Status.INCORRECT_NUMERICAL),
        (candidate("y = torch.softmax(x.half().float(), -1)"), Status.INCORRECT_NUMERICAL),
        (candidate("y = 'none'"), Status.RUNTIME_ERROR),
    ],
    ids=["zeros", "short", "two", "none", "double", "strided", "view", "nan", "fp16", "text"],
)
def test_answers_are_judged_as_on_the_cpu(judge, source, status):
    verdict = judge(source, time=False).verdict
    assert verdict.status is (status or Status.PASSED), verdict.reason


@pytest.mark.parametrize(
    ("top", "forward"),
    [
        # one buffer for all calls: what was acknowledged is gone when it is fetched
        ("kept = {}", "y = kept.setdefault(tuple(y.shape), y).copy_(y)"),
        # acknowledged before it is there, put right by the time that it is looked at
        ("late = []", "late.append((y, y.clone())); [a.copy_(b) for a, b in late[:-1]]; del late[:-1]; y.zero_()"),
    ],
    ids=["one buffer", "late"],
)
def test_outputs_must_be_what_was_acknowledged(judge, top, forward):
    verdict = judge(candidate(forward, top=top), time=False, screen=False).verdict
    assert verdict.status is Status.REWARD_HACK, (verdict.status, verdict.reason)
    assert "acknowledged" in verdict.reason


def test_weights_reach_the_device(rehearsal):
    with rehearsal.open(make_problem(LINEAR_PROBLEM, "linear"), baselines=("eager",)) as session:
        right = session.judge(Candidate(problem_id="linear", source=LINEAR, backend="cpp"), control=True).verdict
        assert right.status is Status.PASSED, right.reason
        wrong = session.judge(Candidate(problem_id="linear", source=STALE, backend="cpp"), control=True).verdict
        assert wrong.status is Status.INCORRECT_NUMERICAL, wrong.reason


def test_a_digest_depends_on_every_byte_and_on_its_key(tmp_path):
    library = DoorLibrary(tmp_path)
    rng = np.random.default_rng(0)

    def digest(data, key):
        return library.digest(data.ctypes.data, data.size, ctypes.c_uint64(key))

    for size in (0, 1, 7, 8, 9, 1001):
        data = rng.integers(0, 256, size, dtype=np.uint8)
        first = digest(data, 11)
        assert first == digest(data.copy(), 11)
        if size:
            assert first != digest(data, 12)
        for place in range(0, size, 97):
            changed = data.copy()
            changed[place] ^= 1
            assert digest(changed, 11) != first
