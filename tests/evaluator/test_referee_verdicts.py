"""What the referee says of right and wrong candidates, through its public face and with every real part."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from referee_candidates import KERNEL, RIGHT, TRITON, candidate
from referee_small_problems import SOFTMAX_PROBLEM, make_problem

from kernelwright.errors import InvalidReferenceError, MissingToolError
from kernelwright.evaluator import Check, Confirm, Referee, Search
from kernelwright.evaluator.figures import intervals as statistics
from kernelwright.evaluator.timing.clockwork import Clockwork
from kernelwright.evaluator.timing.turns import ReadTimes, Turns
from kernelwright.evaluator.truth import oracle_client as asking
from kernelwright.evaluator.verdict import stages
from kernelwright.evaluator.verdict.stages import Stages
from kernelwright.inline import BuildError
from kernelwright.records import Candidate, Stage, Status


def refused(evaluation, status: Status, stage: str | None = None):
    verdict = evaluation.verdict
    assert verdict.status is status, (verdict.status, verdict.reason)
    assert verdict.timing is None
    assert verdict.reason
    if stage is not None:
        assert verdict.failed_stage == stage
    return verdict


def test_a_right_kernel_passes_and_is_timed_against_eager(judge_softmax):
    evaluation = judge_softmax(RIGHT)
    verdict = evaluation.verdict
    assert (verdict.status, verdict.stage, verdict.failed_stage) == (Status.PASSED, Stage.TIMED, None), verdict.reason
    assert verdict.correctness.variants == 2
    assert verdict.correctness.max_error <= verdict.correctness.error_budget
    assert verdict.correctness.kernelbench_allclose
    speedup = verdict.timing.speedup["eager"]
    assert 0 < speedup.low <= speedup.median <= speedup.high < math.inf
    assert 0.05 < speedup.median < 20
    assert {s.role for s in evaluation.samples} == {"candidate", "eager"}
    assert len(evaluation.samples) == 2 * verdict.timing.pairs
    assert all(s.latency_ms > 0 and s.calls >= 4 for s in evaluation.samples)
    assert verdict.candidate == evaluation.candidate.sha256
    assert any(layer.startswith("seccomp") for layer in verdict.sandbox)


@pytest.mark.untimed
def test_an_unchecked_clock_is_never_asked_for(judge_softmax):
    verdict = judge_softmax(RIGHT, depth=Check()).verdict
    assert (verdict.status, verdict.stage, verdict.timing) == (Status.PASSED, Stage.CHECKED, None)


@pytest.mark.untimed
def test_a_kernel_may_be_built_in_the_first_call(judge_softmax):
    """Its build takes longer than a call may: that time is not the call's."""
    lazily = "@functools.lru_cache\ndef lib():\n    return cpp(SOURCE)\n"
    source = RIGHT.replace("lib = cpp(SOURCE, flags=())", f"import functools\n{lazily}").replace(
        "lib.softmax", "lib().softmax"
    )
    verdict = judge_softmax(source, depth=Check()).verdict
    assert verdict.status is Status.PASSED, verdict.reason
    evidence = next(finding.evidence for finding in verdict.findings if finding.rule == "own-kernels")
    assert "wrong without its own kernels" in evidence


def test_a_confirmation_uses_fresh_processes(judge_softmax):
    evaluation = judge_softmax(RIGHT, depth=Confirm())
    verdict = evaluation.verdict
    assert (verdict.status, verdict.stage) == (Status.PASSED, Stage.CONFIRMED), verdict.reason
    assert verdict.timing.confirmed
    assert verdict.timing.processes == 5
    assert {s.process for s in evaluation.samples} == set(range(5))
    assert {s.phase for s in evaluation.samples} == {"confirm"}
    assert_follows_from_samples(verdict.timing, evaluation.samples)


def assert_follows_from_samples(timing, samples):
    """The interval, computed again from the windows that are kept."""
    turns: dict[tuple[int, int], dict[str, float]] = {}
    for sample in samples:
        turns.setdefault((sample.process, sample.pair), {})[sample.role] = math.log(sample.latency_ms)
    values, strayed = [], []
    for process in range(timing.processes):
        of_this = [turn for (number, _), turn in turns.items() if number == process]
        eager = [(turn["eager"] + turn["control"]) / 2 for turn in of_this]  # two processes of the same code
        values.append(np.median([e - turn["candidate"] for e, turn in zip(eager, of_this, strict=True)]))
        strayed.append(np.median([turn["eager"] - turn["control"] for turn in of_this]))
    interval = statistics.stein_interval(values, most=5)  # as many as the settings here allow
    found = timing.speedup["eager"]
    assert (found.median, found.low, found.high) == pytest.approx(interval.ratios())
    assert timing.control_scatter == pytest.approx(math.expm1(math.sqrt(np.mean(np.square(strayed)))))


def test_a_search_says_where_the_time_goes_only_where_that_is_asked_for(judge_softmax):
    plain, explained = judge_softmax(RIGHT).verdict, judge_softmax(RIGHT, depth=Search(explain=True)).verdict
    assert plain.profile.rung == "roofline"
    assert plain.profile.metrics["distance_to_roofline"] > 0
    assert plain.profile.metrics["kernel_calls"] == 1
    assert plain.profile.metrics["code_bytes"] > 100
    assert "instructions_per_call" not in plain.profile.metrics
    assert "profile" not in plain.seconds
    assert (explained.status, explained.stage, explained.timing.confirmed) == (Status.PASSED, Stage.TIMED, False)
    assert explained.profile.metrics["distance_to_roofline"] > 0
    assert "profile" in explained.seconds


@pytest.mark.untimed
@pytest.mark.parametrize(
    ("after", "status"),
    [
        ("y.zero_()", Status.INCORRECT_NUMERICAL),
        ("y.fill_(1e-3)", Status.INCORRECT_NUMERICAL),
        ("y = y[:, :-1]", Status.INCORRECT_SHAPE),
        ("y = y[:1]", Status.INCORRECT_SHAPE),
        ("y = (y, y)", Status.INCORRECT_SHAPE),
        ("y = y.double()", Status.INCORRECT_DTYPE),
        ("y.view(-1)[::100] *= 1.01", Status.INCORRECT_NUMERICAL),
        ("y[0] = y[0].flip(0)", Status.INCORRECT_NUMERICAL),
        ("y = torch.softmax(x.bfloat16(), -1).float()", Status.INCORRECT_NUMERICAL),
        ("y = torch.softmax(x.half().float(), -1)", Status.INCORRECT_NUMERICAL),
        ("y[0, 0] = float('nan')", Status.INCORRECT_NUMERICAL),
    ],
    ids=["zeros", "constant", "short", "one row", "two", "double", "1 percent", "a row", "bf16", "fp16", "nan"],
)
def test_wrong_answers_have_their_own_status(judge_softmax, after, status):
    verdict = refused(judge_softmax(candidate(after)), status, "check")
    assert verdict.stage is Stage.COMPILED


@pytest.mark.untimed
def test_reduced_precision_inside_the_kernel_is_found(judge_softmax):
    cheat = KERNEL.replace(
        "const float* a = x + i * cols;",
        "float a[4096]; for (int64_t j = 0; j < cols; j++) { union { float f; uint32_t u; } v; v.f = x[i * cols + j];"
        " v.u &= 0xffffe000u; a[j] = v.f; }",
    )
    refused(judge_softmax(candidate(kernel=cheat)), Status.INCORRECT_NUMERICAL, "check")


@pytest.mark.untimed
def test_memory_that_a_kernel_has_not_written_holds_nothing(judge_softmax):
    trusting = KERNEL.replace("int64_t cols) {", "int64_t cols) {\n  if (y[0] != y[0]) return;  // else it looks used")
    assert trusting != KERNEL
    refused(judge_softmax(candidate(kernel=trusting), depth=Check()), Status.INCORRECT_NUMERICAL, "check")


@pytest.mark.untimed
def test_wrong_on_odd_shapes_only(judge_softmax):
    refused(judge_softmax(candidate("if x.shape[1] % 8: y[:, -1] = 0")), Status.INCORRECT_NUMERICAL, "check")


@pytest.mark.untimed
def test_processes_differ_in_where_their_tensors_lie(judge_softmax):
    tells = candidate("raise RuntimeError(hex(torch.empty(4096).data_ptr()))")
    reasons = {judge_softmax(tells).verdict.reason for _ in range(4)}
    assert all("0x" in reason for reason in reasons)
    assert len(reasons) > 1


@pytest.mark.untimed
def test_the_answer_must_be_there_when_it_is_acknowledged(judge_softmax):
    lazy = candidate("return type('Lazy', (torch.Tensor,), {})(y)")
    refused(judge_softmax(lazy), Status.RUNTIME_ERROR, "check")


@pytest.mark.parametrize(
    ("after", "status", "says"),
    [
        ("raise ValueError('no')", Status.RUNTIME_ERROR, "ValueError: no"),
        ("import ctypes; ctypes.string_at(0)", Status.RUNTIME_ERROR, "segmentation fault"),
        ("import os; os.kill(os.getpid(), 6)", Status.RUNTIME_ERROR, ""),
        ("import sys; sys.exit(0)", Status.RUNTIME_ERROR, ""),
        ("while True: pass", Status.TIMEOUT, "longer"),
        ("b = [bytearray(1 << 28) for _ in range(400)]", Status.RUNTIME_ERROR, "memory"),
        ("torch.ones(25 * 10**9)", Status.RUNTIME_ERROR, "memory"),
        ("import socket; socket.socket(socket.AF_INET)", Status.RUNTIME_ERROR, "Error"),
        ("import socket; socket.create_connection(('127.0.0.1', 9))", Status.RUNTIME_ERROR, "Error"),
        ("import subprocess; subprocess.run(['true'])", Status.RUNTIME_ERROR, "Error"),
        ("open('/etc/hostname-that-is-not', 'w')", Status.RUNTIME_ERROR, "Error"),
        ("x.zero_()", Status.RUNTIME_ERROR, "segmentation fault"),
        ("while True: print('x' * 4096)", Status.RUNTIME_ERROR, "printed"),
        ("return None", Status.RUNTIME_ERROR, "NoneType"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else None,
)
def test_misbehaviour_is_a_status_and_the_next_candidate_runs(judge_softmax, after, status, says):
    verdict = judge_softmax(candidate(after)).verdict
    assert verdict.status in (status, Status.REWARD_HACK), (verdict.status, verdict.reason)
    if verdict.status is status:
        assert says in verdict.reason
    assert judge_softmax(RIGHT, depth=Check()).verdict.passed


def test_a_fork_bomb_ends_as_a_status(judge_softmax):
    bomb = "import ctypes\nlibc = ctypes.PyDLL('libc.so.6')\nwhile True:\n    libc.fork()"
    verdict = judge_softmax(candidate(bomb)).verdict
    assert verdict.status in (Status.RUNTIME_ERROR, Status.TIMEOUT, Status.REWARD_HACK), verdict.reason
    assert judge_softmax(RIGHT, depth=Check()).verdict.passed


def test_idling_once_checked_is_seen_while_timed(judge_softmax, monkeypatch):
    monkeypatch.setattr(Stages, "_check", lambda *arguments, **options: None)
    monkeypatch.setattr(stages, "ask_for_own_kernels", lambda *arguments, **options: None)
    refused(judge_softmax(candidate("y.zero_()")), Status.INCORRECT_NUMERICAL, "time")


def test_a_time_in_which_nobody_can_read_the_inputs_is_quarantined(referee, monkeypatch):
    """All that would notice a kernel which reads nothing is switched off, but for the floor; honest ones clear it."""
    wide = make_problem(SOFTMAX_PROBLEM.replace("64", "512"), "wide")
    idle = (
        "class ModelNew(nn.Module):\n    y = torch.zeros(512, 512)\n    def forward(self, x):\n        return self.y\n"
    )
    settings = referee.settings.with_values(measurement=referee.settings.measurement.with_values(looks=(24,)))
    with Referee(settings) as own, own.open(wide, baselines=("eager",)) as session:
        evaluation = session.judge(Candidate(problem_id=wide.id, source=RIGHT, backend="cpp"))
        assert evaluation.verdict.passed, evaluation.verdict.reason
        monkeypatch.setattr(Stages, "_check", lambda *arguments, **options: None)
        monkeypatch.setattr(stages, "ask_for_own_kernels", lambda *arguments, **options: None)
        for look in ("_compare", "_judge_reserve"):
            monkeypatch.setattr(Turns, look, lambda *arguments: None)
        evaluation = session.judge(Candidate(problem_id=wide.id, source=f"{RIGHT}\n\n{idle}", backend="cpp"))
    verdict = refused(evaluation, Status.QUARANTINED, "floor")
    assert "less than reading the inputs takes" in verdict.reason


def test_turns_are_added_while_most_outputs_were_slow_to_read(judge_softmax, monkeypatch):
    monkeypatch.setattr(ReadTimes, "doubtful", property(lambda reads: reads._turns < 20))
    evaluation = judge_softmax(RIGHT)
    assert evaluation.verdict.passed, evaluation.verdict.reason
    assert evaluation.verdict.timing.pairs == 20  # the looks end at 12


@pytest.mark.parametrize(("slow_processes", "passes"), [(1, True), (2, False)])
def test_outputs_that_are_slow_to_read_in_one_process_are_timed_in_another(
    judge_softmax, monkeypatch, slow_processes, passes
):
    judged = []

    def wrong(reads, ours, theirs):
        if reads not in judged:
            judged.append(reads)
        if judged.index(reads) >= slow_processes:
            return None
        reads.refused = True
        return Status.REWARD_HACK, "slow to read"

    monkeypatch.setattr(ReadTimes, "wrong", wrong)
    evaluation = judge_softmax(RIGHT)
    assert len(judged) == 2
    if not passes:
        refused(evaluation, Status.REWARD_HACK, "time")
        return
    assert evaluation.verdict.passed, evaluation.verdict.reason
    roles = {(sample.role, sample.pair) for sample in evaluation.samples}
    assert len(roles) == len(evaluation.samples), "what the first process was timed at counts no more"


@pytest.mark.untimed
def test_a_kernel_that_does_not_compile(judge_softmax):
    evaluation = judge_softmax(candidate(kernel='extern "C" void softmax() { oops; }'))
    verdict = refused(evaluation, Status.COMPILE_ERROR, "build")
    assert "oops" in verdict.reason
    assert "oops" in evaluation.artifacts["compiler"]


@pytest.mark.untimed
def test_without_a_compiler_nobody_is_judged(judge_softmax, monkeypatch):
    def missing():
        raise BuildError("no usable C++ compiler")

    monkeypatch.setattr("kernelwright.inline.compiler_version", missing)
    with pytest.raises(MissingToolError, match="g\\+\\+ is not on PATH") as caught:
        judge_softmax(candidate("y.mul_(1.0);"), depth=Check())
    assert "apt install" in caught.value.hint


@pytest.mark.untimed
def test_a_swallowed_build_failure_is_still_one(judge_softmax):
    hidden = candidate(top="try:\n    cpp('nonsense')\nexcept Exception:\n    pass")
    refused(judge_softmax(hidden), Status.COMPILE_ERROR, "build")


@pytest.mark.untimed
def test_python_errors_name_their_line(judge_softmax):
    verdict = refused(judge_softmax(candidate(top="import not_a_package")), Status.RUNTIME_ERROR, "build")
    assert "not_a_package" in verdict.reason
    assert "line" in verdict.reason


def test_weights_go_over_by_name_and_are_rewritten(judge_linear):
    source = '''
import torch
import torch.nn as nn
from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
extern "C" void relu(float* y, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = y[i] > 0 ? y[i] : 0; }
""")


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 48)
        FOLD

    def forward(self, x):
        y = torch.addmm(BIAS, x, WEIGHT.t())
        lib.relu(y, y.numel())
        return y
'''
    honest = source.replace("FOLD", "pass").replace("BIAS", "self.linear.bias").replace("WEIGHT", "self.linear.weight")
    timed = judge_linear(honest, control=True).verdict
    assert (timed.status, timed.stage) == (Status.PASSED, Stage.TIMED), timed.reason
    keep = "self.w = getattr(self, 'w', self.linear.weight.detach().clone())\n        y = torch"
    lazily = honest.replace("y = torch", keep).replace("self.linear.weight.t()", "self.w.t()")
    refused(judge_linear(lazily, control=True), Status.INCORRECT_NUMERICAL, "check")
    wrong = honest.replace("features, 48", "features, 47")
    verdict = refused(judge_linear(wrong), Status.RUNTIME_ERROR, "build")
    assert "linear.weight" in verdict.reason


@pytest.mark.untimed
def test_weights_that_are_matched_by_their_order_are_told(judge_linear):
    source = """
import torch
import torch.nn as nn

class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weights = nn.Parameter(torch.empty(48, features))
        self.offsets = nn.Parameter(torch.empty(48))

    def forward(self, x):
        return torch.relu(torch.nn.functional.linear(x, self.weights, self.offsets))
"""

    def told(text: str) -> list[str]:
        verdict = judge_linear(text, control=True, depth=Check()).verdict
        assert verdict.passed, verdict.reason
        return [found.evidence for found in verdict.findings if found.rule == "weights-by-order"]

    (evidence,) = told(source)
    assert "linear.weight -> weights, linear.bias -> offsets" in evidence
    assert "STATE_MAP" in evidence
    assert told(source + 'STATE_MAP = {"linear.weight": "weights", "linear.bias": "offsets"}\n') == []


@pytest.mark.untimed
def test_knobs_are_set_before_the_file_runs(softmax):
    source = candidate("if SCALE != 1: y.mul_(SCALE)", top='KNOBS = {"SCALE": [1, 2]}\nSCALE = 1')
    for knobs, status in (({}, Status.PASSED), ({"SCALE": 2}, Status.INCORRECT_NUMERICAL)):
        made = Candidate(problem_id=softmax.problem.id, source=source, backend="cpp", knobs=knobs)
        assert softmax.judge(made, depth=Check()).verdict.status is status
    unknown = Candidate(problem_id=softmax.problem.id, source=source, backend="cpp", knobs={"NOPE": 2})
    assert "NOPE" in softmax.judge(unknown).verdict.reason


@pytest.mark.untimed
def test_triton_is_checked_in_the_interpreter_and_never_timed(softmax):
    def judge(text):
        made = Candidate(problem_id=softmax.problem.id, source=text, backend="triton")
        return softmax.judge(made).verdict

    right = judge(TRITON.replace("SCALE", ""))
    assert (right.status, right.stage, right.timing) == (Status.PASSED, Stage.CHECKED, None), right.reason
    wrong = judge(TRITON.replace("SCALE", " * 1.001"))
    assert wrong.status is Status.INCORRECT_NUMERICAL
    beyond = judge(TRITON.replace("SCALE", "").replace("mask=at < cols, other", "mask=at < cols + 4096, other"))
    assert beyond.status is Status.PASSED or "out of bounds" in beyond.reason.lower()


def test_a_control_needs_no_kernel_of_its_own(judge_softmax):
    library = (
        "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x.softmax(-1)\n"
    )
    refused(judge_softmax(library), Status.INELIGIBLE, "screen")
    verdict = judge_softmax(library, control=True).verdict
    assert verdict.control
    assert verdict.passed


OF_ONE_SHAPE = KERNEL.replace("int64_t cols) {", "int64_t cols) { if (cols != 512) return;")
BY_TORCH = """
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)
"""


@pytest.mark.untimed
@pytest.mark.parametrize(
    ("source", "status", "there"),
    [
        (RIGHT, Status.PASSED, True),
        (BY_TORCH, Status.INELIGIBLE, True),
        (candidate(kernel=OF_ONE_SHAPE), Status.INCORRECT_NUMERICAL, True),
        (candidate("y[y < 2e-5] *= 3"), Status.INCORRECT_NUMERICAL, True),
        (candidate("y.mul_(1.5)"), Status.INCORRECT_NUMERICAL, False),
        (candidate("y = y[:, :-1]"), Status.INCORRECT_SHAPE, False),
        (candidate("raise ValueError"), Status.RUNTIME_ERROR, False),
        (candidate(kernel="not C++"), Status.COMPILE_ERROR, False),
    ],
    ids=["right", "torch", "one shape", "small errors", "wrong", "shape", "raises", "no code"],
)
def test_what_kernelbenchs_rule_would_have_said_is_known_where_that_is_asked_for(
    softmax, judge_softmax, source, status, there
):
    verdict = softmax.as_kernelbench(judge_softmax(source, depth=Check())).verdict
    assert (verdict.status, verdict.as_kernelbench) == (status, there), verdict.reason


@pytest.mark.untimed
def test_kernelbenchs_rule_is_not_asked_unless_somebody_wants_to_know(judge_softmax):
    assert judge_softmax(BY_TORCH, depth=Check()).verdict.as_kernelbench is None


@pytest.mark.untimed
def test_the_error_is_known_by_distribution_of_the_inputs(judge_softmax):
    right = judge_softmax(RIGHT, depth=Check()).verdict.correctness
    assert {"own", "normal", "probe"} <= set(right.loads)
    assert max(right.loads.values()) == pytest.approx(right.max_error / right.error_budget)
    wrong = judge_softmax(candidate("y.mul_(1.5)"), depth=Check()).verdict.correctness
    assert max(wrong.loads.values()) > 1


@pytest.mark.untimed
def test_a_check_set_that_the_machine_cannot_hold_is_refused_before_it_is_made(referee, monkeypatch):
    monkeypatch.setattr(asking, "most_kept_bytes", lambda: 3 << 20)
    with pytest.raises(InvalidReferenceError, match=r"take more than 0.0 GiB, a quarter of this machine's memory"):
        referee.open(make_problem(SOFTMAX_PROBLEM, "softmax"), baselines=("eager",))


def test_baselines_are_compiled_beside_what_comes_before_the_first_judgement(referee, monkeypatch):
    compiled, wanted = [], threading.Event()

    def compile_ahead(clockwork, name, check_set):
        assert wanted.wait(60)
        compiled.append((name, threading.current_thread()))

    monkeypatch.setattr(Clockwork, "compile_ahead", compile_ahead)
    with referee.open(make_problem(SOFTMAX_PROBLEM, "ahead"), baselines=("eager", "compile")) as session:
        session.compile_ahead("cpp")
        assert compiled == []
        wanted.set()
        made = Candidate(problem_id=session.problem.id, source=RIGHT, backend="cpp")
        assert session.judge(made, depth=Check()).verdict.passed
        ((name, thread),) = compiled  # a judgement waits for it
    assert name == "compile"
    assert thread is not threading.main_thread()
