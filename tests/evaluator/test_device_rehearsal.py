"""How candidates are checked and timed on a device: the whole referee, through a stand-in for the driver."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from referee_candidates import KERNEL, RIGHT, candidate
from referee_small_problems import LINEAR_PROBLEM, SOFTMAX_PROBLEM, make_problem, unscreened

from kernelwright.errors import MachineError
from kernelwright.evaluator import Check, Confirm, Referee
from kernelwright.evaluator.device import clock
from kernelwright.evaluator.device.clock import DeviceWorkers
from kernelwright.evaluator.device.examine import Examiner
from kernelwright.evaluator.own.trace import kernel_names
from kernelwright.evaluator.profile.gpu_ceilings import parse_ceilings
from kernelwright.evaluator.profile.ncu import parse_raw
from kernelwright.evaluator.profile.winner import Faults
from kernelwright.evaluator.timing.workers import Workers
from kernelwright.evaluator.verdict.search_and_confirm import Timekeeper
from kernelwright.evaluator.wire.claims import Failure, WorkerFailed
from kernelwright.evaluator.worker.program import JOB, MODULE, job_files
from kernelwright.inline import BuildRequest
from kernelwright.records import Candidate, Stage, Status, TimingSample

RECORDINGS = Path(__file__).with_name("recordings")
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
def rehearsal(referee, stand_in_device):
    method = referee.settings.measurement.with_values(looks=(3, 6), noise_bound=0.3)
    with Referee(referee.settings.with_values(measurement=method), device=stand_in_device) as made:
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


@pytest.fixture(scope="module")
def confirmed(session):
    """A right kernel, with its confirmation."""
    return session.judge(Candidate(problem_id=session.problem.id, source=RIGHT, backend="cpp"), depth=Confirm())


@pytest.fixture
def made_up_pairs(monkeypatch):
    """What pairs of processes would be measured to take, for tests of what comes after a confirmation."""

    def pair(timekeeper, candidate, check_set, process, progress, rivals):
        for role in ("candidate", "eager"):
            progress.samples.append(
                TimingSample(role=role, process=process, pair=0, order=0, calls=4, latency_ms=1.0, phase="confirm")
            )
        return {"control": process / 1000 - 0.002, "eager": 0.1 + process / 1000}

    monkeypatch.setattr(Timekeeper, "_process_pair", pair)


def test_a_right_kernel_is_timed_and_not_examined(judge, monkeypatch):
    monkeypatch.setattr(Examiner, "faults", lambda examiner, files: pytest.fail("only winners are looked at"))
    evaluation = judge(RIGHT)
    verdict = evaluation.verdict
    assert (verdict.status, verdict.stage) == (Status.PASSED, Stage.TIMED), verdict.reason
    assert not verdict.timing.confirmed
    assert {s.role for s in evaluation.samples} == {"candidate", "eager"}
    assert verdict.timing.speedup["eager"].median < 20
    assert evaluation.environment.device == "rehearsal on this CPU"


def test_a_bound_is_confirmed(confirmed):
    verdict = confirmed.verdict
    assert (verdict.status, verdict.stage) == (Status.PASSED, Stage.CONFIRMED), verdict.reason
    assert verdict.timing.confirmed
    assert verdict.timing.processes == 5


@pytest.mark.untimed
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
    verdict = judge(source, depth=Check()).verdict
    assert verdict.status is (status or Status.PASSED), verdict.reason


@pytest.mark.untimed
def test_an_answer_that_comes_after_it_was_acknowledged_does_not_count(judge, session):
    top = "late = []"
    forward = "late.append((y, y.clone())); [a.copy_(b) for a, b in late[:-1]]; del late[:-1]; y.zero_()"
    with unscreened(session):
        verdict = judge(candidate(forward, top=top), depth=Check()).verdict
    assert verdict.status is Status.INCORRECT_NUMERICAL, verdict.reason


def test_one_buffer_for_all_calls_overwrites_what_a_user_still_holds(judge, session):
    with unscreened(session):
        verdict = judge(candidate("y = kept.setdefault(tuple(y.shape), y).copy_(y)", top="kept = {}")).verdict
    assert verdict.status is Status.REWARD_HACK, (verdict.status, verdict.reason)
    assert "overwrites" in verdict.reason


@pytest.mark.parametrize("kind", [Workers, DeviceWorkers])
def test_workers_that_start_together_all_start_or_none_stays(kind):
    ended, sides = [], [SimpleNamespace(name=name) for name in "abc"]
    for side in sides:
        side.end = functools.partial(ended.append, side.name)

    def fails(name):
        raise ValueError(name)

    whole = [lambda side=side: side for side in sides]
    assert kind.start_all(None, whole) == sides
    assert ended == []
    broken = [whole[0], functools.partial(fails, "first"), whole[2], functools.partial(fails, "second")]
    with pytest.raises(ValueError, match="first"):
        kind.start_all(None, broken)
    assert "a" in ended
    assert set(ended) == ({"a", "c"} if kind is DeviceWorkers else {"a"})


def test_weights_reach_the_device(rehearsal):
    with rehearsal.open(make_problem(LINEAR_PROBLEM, "linear"), baselines=("eager",)) as session:
        right = session.judge(Candidate(problem_id="linear", source=LINEAR, backend="cpp"), control=True).verdict
        assert right.status is Status.PASSED, right.reason
        wrong = session.judge(Candidate(problem_id="linear", source=STALE, backend="cpp"), control=True).verdict
        assert wrong.status is Status.INCORRECT_NUMERICAL, wrong.reason


CUDA_SOURCE = """
template <class T, int N>
__global__ void __launch_bounds__(256, 2) softmax(float* x) {}
"""
TRITON_SOURCE = """
import triton

@triton.jit
def rows(x):
    pass

@triton.autotune(configs=[], key=[])
@triton.jit
def more():
    pass

def helper():
    pass
"""


def test_kernels_are_found_by_their_names():
    assert kernel_names([CUDA_SOURCE], TRITON_SOURCE) == {"softmax", "rows", "more"}
    assert kernel_names([], "def broken(:") == set()


@pytest.mark.untimed
def test_a_device_is_looked_at_after_a_fault(judge, session, monkeypatch):
    assert judge(candidate("raise ValueError('no')"), depth=Check()).verdict.status is Status.RUNTIME_ERROR
    dead = WorkerFailed(Failure("timeout", "probe", "it does not answer"), "probe")

    def probe(workers):
        raise dead

    monkeypatch.setattr(DeviceWorkers, "probe", probe)
    with pytest.raises(MachineError, match="does not compute any more after a candidate's fault: it does not answer"):
        judge(candidate("raise ValueError('no')"), depth=Check())


def run_alone(referee, source, products):
    files = job_files(source, SOFTMAX_PROBLEM, {"ROWS": 3, "COLS": 5}, products, mode="eval", device="cpu", calls=2)
    return referee.host.sandbox.run(
        [sys.executable, "-m", MODULE, JOB], files=files, env=referee.host.sandbox.environment()
    )


@pytest.mark.untimed
def test_a_candidate_runs_by_itself_with_what_was_built_of_it(referee):
    request = BuildRequest("cpp", KERNEL, ())
    built = referee.host.builds.build({"language": "cpp", "flags": []}, KERNEL)
    source = candidate("import sys; print('called', tuple(y.shape), file=sys.stderr)")
    done = run_alone(referee, source, {request.key: built.product})
    assert done.returncode == 0, done.stderr
    assert done.stderr.decode().splitlines().count("called (3, 5)") == 2
    assert run_alone(referee, source, {}).returncode != 0, "nothing is compiled there"


def found(finding, evaluation):
    return [found.evidence for found in evaluation.verdict.findings if found.rule == finding]


def test_what_its_own_process_measures_is_told_as_a_claim(judge):
    evaluation = judge(RIGHT)
    (claim,) = found("device-events", evaluation)
    assert claim.endswith("by events of its own process: a claim")
    assert evaluation.verdict.status is Status.PASSED


@pytest.mark.untimed
def test_a_winner_with_a_faulty_access_loses_its_time(judge, made_up_pairs, monkeypatch):
    looked_at = []

    def faults(examiner, files):
        looked_at.append(files["job.json"])
        return Faults(("Invalid __global__ read of size 4 bytes in softmax",), ())

    monkeypatch.setattr(Examiner, "faults", faults)
    verdict = judge(RIGHT, depth=Confirm()).verdict
    assert (verdict.status, verdict.failed_stage, verdict.timing) == (Status.QUARANTINED, "confirm", None)
    assert "Invalid __global__ read" in verdict.reason
    assert b'"ROWS": 7' in looked_at[0]  # the small variant
    assert len(looked_at) == 1


@pytest.mark.untimed
def test_a_winner_is_profiled_by_the_best_rung(judge, made_up_pairs, monkeypatch):
    counters = parse_raw((RECORDINGS / "ncu_raw_2025.csv").read_text())
    monkeypatch.setattr(Examiner, "faults", lambda examiner, files: Faults((), ("memcheck: not here",)))
    monkeypatch.setattr(Examiner, "counters", lambda examiner, files, kernels: counters)
    evaluation = judge(RIGHT, depth=Confirm())
    assert evaluation.verdict.profile.rung == "ncu"
    assert evaluation.verdict.profile.notes
    assert found("memory-not-checked", evaluation) == ["memcheck: not here"]


def test_without_tools_a_winner_stays_one_and_says_what_is_missing(confirmed):
    assert confirmed.verdict.status is Status.PASSED, confirmed.verdict.reason
    assert confirmed.verdict.profile.rung == "none"
    assert "not installed" in found("memory-not-checked", confirmed)[0]


def test_a_time_below_the_roofline_is_quarantined(judge, monkeypatch):
    slow = {"device": "slow", "architecture": "sm_90", "processors": 1, "l2_bytes": 1, "launch_us": 1.0}
    slow |= {"bandwidth_by_bytes": [[1 << 30, 1e-3]], "tflops_by_dtype": {"float32": 1e3}}
    monkeypatch.setattr(Examiner, "ceilings", lambda examiner: parse_ceilings(slow))
    verdict = judge(RIGHT).verdict
    assert (verdict.status, verdict.failed_stage, verdict.timing) == (Status.QUARANTINED, "floor", None)


def test_clocks_and_temperature_are_kept_beside_a_time(judge, monkeypatch):
    states = iter([{"clocks.sm": "1980 MHz"}, {"clocks.sm": "1755 MHz"}])
    monkeypatch.setattr(clock, "read_state", lambda device: next(states))
    kept = judge(RIGHT).artifacts["device state"]
    assert kept == "before: clocks.sm 1980 MHz\nafter: clocks.sm 1755 MHz"
