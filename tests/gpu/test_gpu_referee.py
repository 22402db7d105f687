"""Right and wrong candidates in CUDA and Triton, checked and timed on the device by the whole referee."""

from __future__ import annotations

import pytest
from referee_candidates import TRITON
from referee_cuda_candidates import EXTENSION, KERNEL
from referee_small_problems import make_problem

from kernelwright.evaluator import Check, Confirm
from kernelwright.records import Candidate, Stage, Status

PROBLEM = """
import torch
import torch.nn as nn

PROBLEM = {
    "category": "softmax",
    "inputs": {"x": {"fill": "normal", "low": -1e4, "high": 1e4}},
    "variants": {"gpu": [{"ROWS": 1024, "COLS": 1024}, {"ROWS": 37, "COLS": 131}]},
}
ROWS = 1024
COLS = 1024


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
"""
RIGHT_TRITON = TRITON.replace("SCALE", "")
BACKENDS = {"triton": (RIGHT_TRITON, "triton"), "kernel": (KERNEL, "cuda"), "extension": (EXTENSION, "cuda")}
ONE_BUFFER = """
class Kept(ModelNew):
    def forward(self, x):
        y = super().forward(x)
        self.kept = getattr(self, "kept", {})
        return self.kept.setdefault(y.shape, torch.empty_like(y)).copy_(y)


ModelNew = Kept
"""
SIDE_STREAM = """
class Aside(ModelNew):
    def forward(self, x):
        self.stream = getattr(self, "stream", None) or torch.cuda.Stream()
        with torch.cuda.stream(self.stream):
            return super().forward(x)


ModelNew = Aside
"""
DECOY = """
class Decoy(ModelNew):
    def forward(self, x):
        super().forward(x[:1])
        return torch.softmax(x, -1)


ModelNew = Decoy
"""
ENDLESS = RIGHT_TRITON.replace(
    "    row = tl.program_id(0)", "    while tl.load(y) != 12345.0:\n        pass\n    row = 0"
)


@pytest.fixture(scope="module")
def session(referee):
    given = {"backend": "triton", "baselines": ("eager", "compile")}
    with referee.open(make_problem(PROBLEM, "softmax"), **given) as opened:
        yield opened


@pytest.fixture
def judge(session):
    def judged(source, backend, *, screen=True, **options):
        session.screens = screen
        return session.judge(Candidate(problem_id=session.problem.id, source=source, backend=backend), **options)

    return judged


@pytest.mark.parametrize("kind", BACKENDS)
def test_a_right_kernel_is_timed(judge, kind):
    evaluation = judge(*BACKENDS[kind])
    verdict = evaluation.verdict
    assert (verdict.status, verdict.stage) == (Status.PASSED, Stage.TIMED), verdict.reason
    assert set(verdict.timing.speedup) == {"eager", "compile"}
    assert 0.05 < verdict.timing.speedup["eager"].median < 50
    assert not verdict.timing.confirmed
    assert evaluation.environment.device_class == "gpu"
    assert "clocks.sm" in evaluation.artifacts["device state"]


def test_a_confirmation_takes_fresh_processes(judge):
    verdict = judge(RIGHT_TRITON, "triton", depth=Confirm()).verdict
    assert (verdict.status, verdict.stage) == (Status.PASSED, Stage.CONFIRMED), verdict.reason
    assert verdict.timing.processes >= 5
    assert verdict.timing.confirmed
    assert verdict.profile.rung in ("ncu", "torch.profiler", "static")


@pytest.mark.parametrize(
    ("source", "backend", "status"),
    [
        (TRITON.replace("SCALE", " * 1.001"), "triton", Status.INCORRECT_NUMERICAL),
        (KERNEL.replace("/ t;", "/ t * 1.001f;"), "cuda", Status.INCORRECT_NUMERICAL),
        (KERNEL.replace("[x.shape[0], 128, 16]", "[x.shape[0], 4096, 16]"), "cuda", Status.RUNTIME_ERROR),
        (KERNEL.replace("float t = 0;", "float t = nonsense;"), "cuda", Status.COMPILE_ERROR),
        (KERNEL.replace("x.shape[0], x.shape[1])", "x.shape[0] - 1, 1 << 30)"), "cuda", Status.RUNTIME_ERROR),
        (RIGHT_TRITON + ONE_BUFFER, "triton", Status.REWARD_HACK),
        (RIGHT_TRITON + DECOY, "triton", Status.REWARD_HACK),
        (ENDLESS, "triton", Status.TIMEOUT),
    ],
    ids=["triton value", "cuda value", "block", "compile", "address", "one buffer", "decoy", "endless"],
)
def test_wrong_ones_are_refused_and_the_device_goes_on(judge, source, backend, status):
    verdict = judge(source, backend, screen=False).verdict
    assert verdict.status is status, (verdict.status, verdict.reason)
    assert verdict.timing is None


def test_work_on_another_stream_is_waited_for(judge):
    verdict = judge(RIGHT_TRITON + SIDE_STREAM, "triton", screen=False).verdict
    assert verdict.status is Status.PASSED, verdict.reason
    assert verdict.timing is not None


HEARING = """
import sys
from triton import knobs


def heard(*, src, metadata, metadata_group, times, cache_hit):
    print("was compiled ahead" if cache_hit else "is compiled now", file=sys.stderr)


knobs.compilation.listener = heard
"""


def test_what_was_compiled_ahead_is_what_launches_ask_for(judge, session):
    assert session.builds_ahead("triton"), "no cores are left over for building"
    evaluation = judge(HEARING + RIGHT_TRITON, "triton", screen=False, depth=Check())
    assert evaluation.verdict.status is Status.PASSED, evaluation.verdict.reason
    assert "was compiled ahead" in evaluation.artifacts["worker output"]
    assert "is compiled now" not in evaluation.artifacts["worker output"]
