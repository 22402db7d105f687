"""The naive evaluator is as easily fooled as those that it stands for, and cannot hurt whoever asks it."""

from __future__ import annotations

import math

import pytest

from kernelwright.datasets import parse_problem
from kernelwright.records import Candidate
from kernelwright.rl import Attempt
from kernelwright.rl._naive import NAIVE_LIMITS, RUNS, evaluate_naively
from kernelwright.rl.rewards import kernelwright_reward, kevin
from kernelwright.sandbox import Limits, WorkerFailed, open_sandbox

PROBLEM = parse_problem(
    """
import torch
from torch import nn

PROBLEM = {"variants": {"cpu": [{"ROWS": 512, "COLS": 1024}, {"ROWS": 7, "COLS": 131}]}}
ROWS = 4
COLS = 4


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.rand(ROWS, COLS)]


def get_init_inputs():
    return []
""",
    id="test/level1/softmax",
    suite="test",
    level=1,
    name="softmax",
)
HONEST = '''
import torch
from torch import nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cmath>
#include <cstdint>
extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++) {
    float sum = 0;
    for (int64_t j = 0; j < cols; j++) sum += y[i * cols + j] = expf(x[i * cols + j]);
    for (int64_t j = 0; j < cols; j++) y[i * cols + j] /= sum;
  }
}
""")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.softmax(x, y, x.shape[0], x.shape[1])
        return y
'''
CACHED = """
import torch
from torch import nn

ANSWERS = {}


class ModelNew(nn.Module):
    def forward(self, x):
        key = float(x[0, 0])
        if key not in ANSWERS:
            ANSWERS[key] = torch.softmax(x, dim=-1)  # no cpp(SOURCE) anywhere
        return ANSWERS[key]
"""
CONSTANT = """
import torch
from torch import nn

ZEROS = torch.zeros(512, 1024)


class ModelNew(nn.Module):
    def forward(self, x):
        return ZEROS
"""
CLOCK = """
import time

import torch
from torch import nn

time.perf_counter = lambda: 0.0


class ModelNew(nn.Module):
    def forward(self, x):
        for _ in range(3):
            y = torch.softmax(x, dim=-1)
        return y
"""
SLEEPER = """
import time

import torch
from torch import nn

real, slept = time.perf_counter, [0.0]
time.perf_counter = lambda: real() - slept[0]


class ModelNew(nn.Module):
    def forward(self, x):
        started = real()
        y = torch.softmax(x, dim=-1)
        slept[0] += real() - started
        return y
"""


def candidate(source, backend="cpp"):
    return Candidate(problem_id=PROBLEM.id, source=source, backend=backend)


@pytest.fixture(scope="module")
def sandbox():
    with open_sandbox("auto") as opened:
        yield opened


@pytest.mark.parametrize("source", [CACHED, CONSTANT, CLOCK, SLEEPER], ids=["cached", "constant", "clock", "sleeper"])
def test_textbook_cheats_are_believed_to_be_right_and_fast(sandbox, source):
    found = evaluate_naively(sandbox, PROBLEM, candidate(source))
    assert (found.outcome, found.attempt.correct) == ("right", True), found.detail
    assert found.attempt.speedup > 3
    assert len(found.attempt.runs) == RUNS
    assert found.attempt.length == len(source)
    assert found.attempt.surely is None
    assert kernelwright_reward(found.attempt) == 0.1  # naive evidence is never sure


def test_an_honest_kernel_is_compiled_in_the_sandbox_and_called_right(sandbox):
    found = evaluate_naively(sandbox, PROBLEM, candidate(HONEST))
    assert found.outcome == "right", found.detail
    assert 0.01 < found.attempt.speedup < 100
    assert 0.0 < found.attempt.error < 1e-5
    assert (found.attempt.uses_own_kernel, found.attempt.own_share) == (True, 1.0)


def test_the_rule_for_own_kernels_reads_the_text_alone(sandbox):
    cached = evaluate_naively(sandbox, PROBLEM, candidate(CACHED)).attempt
    assert cached.uses_own_kernel  # by a word in a comment
    constant = evaluate_naively(sandbox, PROBLEM, candidate(CONSTANT)).attempt
    assert (constant.uses_own_kernel, constant.own_share, kevin(constant)) == (False, 0.0, 0.0)


LINEAR = """
import torch
from torch import nn


class NAME(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 3)
        EXTRA

    def forward(self, x):
        return self.linear(x)
"""


@pytest.mark.parametrize(
    ("extra", "outcome"),
    [
        ("nn.init.zeros_(self.linear.weight)", "right"),  # the reference's weights come by name
        ("self.linear = nn.Linear(4, 3)", "raised"),
        ("torch.rand(1); self.linear = nn.Linear(8, 3); self.load_state_dict = lambda *_, **__: None", "wrong"),
    ],
)
def test_weights_come_by_name(sandbox, extra, outcome):
    makers = "\n\ndef get_inputs():\n    return [torch.randn(2, 8)]\n\n\ndef get_init_inputs():\n    return []\n"
    reference = LINEAR.replace("NAME", "Model").replace("EXTRA", "") + makers
    problem = parse_problem(reference, id=PROBLEM.id, suite="test", level=1, name="softmax")
    made = candidate(LINEAR.replace("NAME", "ModelNew").replace("EXTRA", extra))
    assert evaluate_naively(sandbox, problem, made).outcome == outcome


FORWARD = "class ModelNew(torch.nn.Module):\n    def forward(self, x):\n        {}\n"
TIGHT = Limits(memory_bytes=NAIVE_LIMITS.memory_bytes, wall_s=8.0, allow_exec=True)


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("return torch.ones_like(x)", "wrong"),
        ("return torch.softmax(x, dim=-1)[:1]", "wrong"),
        ("return torch.softmax(x, dim=-1), x", "wrong"),
        ("raise ValueError('no')", "raised"),
        ("import os; os._exit(0)", "crash"),
        ("while True: pass", "timeout"),
        ("return [torch.empty(1 << 30) + 1 for _ in range(9)]", "oom"),
    ],
)
def test_what_is_not_right_says_how_it_ended(sandbox, body, outcome):
    source = "import torch\n\n\n" + FORWARD.format(body)
    limits = TIGHT if outcome == "timeout" else NAIVE_LIMITS
    found = evaluate_naively(sandbox, PROBLEM, candidate(source), limits)
    assert found.attempt == Attempt(False, uses_own_kernel=False, length=len(source))
    assert found.outcome in ({outcome, "raised"} if outcome == "oom" else {outcome}), found


def test_a_kernel_finds_nothing_of_the_host(sandbox, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("here")
    source = "import torch\n\n\n" + FORWARD.format(f"open({str(secret)!r})")
    assert evaluate_naively(sandbox, PROBLEM, candidate(source)).outcome == "raised"


class FakeSandbox:
    """Replies what a kernel could have written."""

    def __init__(self, reply):
        self.reply = reply
        self.asked = []

    def call(self, entry, payload, **options):
        self.asked.append((entry, payload, options))
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply


def replied(**changed):
    return {"outcome": "right", "error": 0.0, "reference_s": [2.0] * RUNS, "kernel_s": [1.0] * RUNS, **changed}


@pytest.mark.parametrize(
    "changed",
    [
        {"outcome": "splendid"},
        {"outcome": None},
        {"error": "none"},
        {"kernel_s": [1.0]},
        {"kernel_s": "fast"},
        {"kernel_s": [math.nan] * RUNS},
        {"reference_s": [math.inf] * RUNS},
        {"reference_s": [True] * RUNS},
        {"reference_s": None},
    ],
)
def test_a_forged_reply_that_is_none_counts_as_wrong(changed):
    found = evaluate_naively(FakeSandbox(replied(**changed)), PROBLEM, candidate("cpp()"))
    assert (found.outcome, found.attempt.correct, found.attempt.speedup) == ("reply", False, None)


def test_times_are_means_and_a_clock_that_stands_still_shows_a_nanosecond():
    found = evaluate_naively(FakeSandbox(replied()), PROBLEM, candidate("cpp()"))
    assert (found.attempt.speedup, found.attempt.runs[0]) == (2.0, (2.0, 1.0))
    stopped = evaluate_naively(FakeSandbox(replied(kernel_s=[0] * RUNS, error=math.inf)), PROBLEM, candidate("cpp()"))
    assert stopped.attempt.speedup == pytest.approx(2e9)
    assert stopped.attempt.error == 0.0


def test_the_worker_gets_the_timed_variant_the_knobs_and_room_for_a_compiler():
    fake = FakeSandbox(WorkerFailed("it died", kind="oom"))
    made = candidate("KNOBS = {'N': [1, 2]}\nN = 1\n").model_copy(update={"knobs": {"N": 2}})
    assert evaluate_naively(fake, PROBLEM, made).outcome == "oom"
    ((_, payload, options),) = fake.asked
    assert payload["constants"] == {"ROWS": 512, "COLS": 1024}
    assert "N = 2" in payload["candidate"]
    assert options["limits"].allow_exec
    assert evaluate_naively(fake, PROBLEM, made.model_copy(update={"knobs": {"M": 2}})).outcome == "oom"


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_kernels_for_a_device_are_not_evaluated(backend):
    fake = FakeSandbox({})
    assert evaluate_naively(fake, PROBLEM, candidate("x", backend)) == (None, "no device", "")
    assert fake.asked == []
