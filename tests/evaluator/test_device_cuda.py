"""CUDA kernels on a device, from source to verdict: enqueued ahead, recorded and replayed, through a stand-in."""

from __future__ import annotations

import pytest
from referee_small_problems import LINEAR_PROBLEM, SOFTMAX_PROBLEM, make_problem, unscreened

from kernelwright.evaluator import Check, Confirm, Referee
from kernelwright.evaluator.device import recorder
from kernelwright.evaluator.device.empty import EmptyCalls
from kernelwright.evaluator.device.replay import AddressTaken, CannotReplay, Replay
from kernelwright.evaluator.device.station import Station
from kernelwright.records import Candidate, Stage, Status

SOFTMAX = """
import torch
import torch.nn as nn
from kernelwright.inline import cuda

KERNEL = r'''
extern "C" __global__ void rows(const float* x, float* y, int rows, int cols) {
  for (int r = blockIdx.x; r < rows; r += gridDim.x) {
    const float* from = x + r * cols;
    float largest = from[0], sum = 0.0f;
    for (int c = 1; c < cols; c++) largest = from[c] > largest ? from[c] : largest;
    for (int c = 0; c < cols; c++) sum += expf(from[c] - largest);
    for (int c = 0; c < cols; c++) y[r * cols + c] = expf(from[c] - largest) / sum;
  }
}
'''
kernel = cuda(KERNEL, "rows")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[4, 1](x, y, x.shape[0], x.shape[1])
        return y
"""
LINEAR = """
import torch
import torch.nn as nn
from kernelwright.inline import cuda

KERNEL = r'''
extern "C" __global__ void product(const float* x, const float* w, const float* b, float* y, int m, int n, int k) {
  for (int i = blockIdx.x; i < m; i += gridDim.x)
    for (int j = 0; j < n; j++) {
      float sum = 0.0f;
      for (int l = 0; l < k; l++) sum += x[i * k + l] * w[j * k + l];
      sum += b[j];
      y[i * n + j] = sum > 0.0f ? sum : 0.0f;
    }
}
'''
kernel = cuda(KERNEL, "product")


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 48)

    def forward(self, x):
        y = torch.empty(x.shape[0], 48, device=x.device)
        kernel[4, 1](x, self.linear.weight, self.linear.bias, y, x.shape[0], 48, x.shape[1])
        return y
"""
# A library in two operators of torch: one launches through the driver, the other through the runtime. The referee's
# launchers know nothing of either.
HYBRID = (
    LINEAR.replace("import torch\n", "import ctypes\nimport torch\n", 1)
    .replace(
        "  for (int i = blockIdx.x;", "  for (int n_ = 0; n_ < 20; n_++) for (int i = blockIdx.x;"
    )  # has a clear share
    .replace("sum += x[i * k + l]", "sum += ((volatile const float*)x)[i * k + l]")
    .replace(
        """

class ModelNew""",
        """
LATER = r'''
extern "C" __global__ void scaled(float* y, float by, int count) {
  for (int i = blockIdx.x; i < count; i += gridDim.x) y[i] *= by;
}
'''
other = cuda(LATER, "scaled")
library, loaded = ctypes.CDLL(STANDIN), []
operators = torch.library.Library("rehearsed", "DEF")
operators.define("scale(Tensor(a!) y, float by, bool by_runtime) -> ()")


c_size_t = ctypes.c_size_t


class Sizes(ctypes.Structure):
    _fields_ = [("of", ctypes.c_uint * 3)]


def scale(y, by, by_runtime):
    if not loaded:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        with open(other._product, "rb") as file:
            assert not library.cuModuleLoadData(ctypes.byref(module), file.read())
        assert not library.cuModuleGetFunction(ctypes.byref(function), module, b"scaled")
        loaded.append(function)
    given = ctypes.c_uint64(y.data_ptr()), ctypes.c_float(by), ctypes.c_int(y.numel())
    values = (ctypes.c_void_p * 3)(*map(ctypes.addressof, given))
    MORE
    if by_runtime:
        grid, block = Sizes((2, 1, 1)), Sizes((1, 1, 1))
        assert not library.cudaLaunchKernel(loaded[0], grid, block, values, c_size_t(0), None)
    else:
        assert not library.cuLaunchKernel(loaded[0], 2, 1, 1, 1, 1, 1, 0, None, values, None)


operators.impl("scale", scale, "CPU")


class ModelNew""",
        1,
    )
    .replace(
        "        return y",
        "        torch.ops.rehearsed.scale(y, 0.5, False)\n"
        "        torch.ops.rehearsed.scale(y, 2.0, True)\n"
        "        return y",
    )
)
# A copy of the weights, made anew when they have changed: a recorded call does not make it.
REPACKED = LINEAR.replace("import torch\n", "import ctypes\nimport torch\n", 1).replace(
    "y = torch.empty",
    "weight = self.linear.weight\n"
    "        now = sum((ctypes.c_float * weight.numel()).from_address(weight.data_ptr()))\n"
    "        if now != getattr(self, 'first', None):\n"
    "            self.first, self.seen = now, self.linear.weight.clone()\n"
    "        y = torch.empty",
)
REPACKED = REPACKED.replace("kernel[4, 1](x, self.linear.weight,", "kernel[4, 1](x, self.seen,")


@pytest.fixture(scope="module")
def device_referee(referee, stand_in_device, stand_in_builds):
    method = referee.settings.measurement.with_values(looks=(3, 6), noise_bound=0.3)
    with Referee(referee.settings.with_values(measurement=method), device=stand_in_device) as made:
        made.host.builds = stand_in_builds(made.host.builds)
        yield made


@pytest.fixture(scope="module")
def softmax_there(device_referee):
    problem = make_problem(SOFTMAX_PROBLEM, "softmax")
    with device_referee.open(problem, backend="cuda", baselines=("eager",)) as opened:
        yield opened


@pytest.fixture
def judge(softmax_there):
    def judged(source, depth=None):
        with unscreened(softmax_there):
            return softmax_there.judge(Candidate(problem_id="softmax", source=source, backend="cuda"), depth)

    return judged


def said(evaluation, rule):
    return next((finding.evidence for finding in evaluation.verdict.findings if finding.rule == rule), "")


def test_a_kernel_is_checked_recorded_and_timed_by_its_replay(judge):
    evaluation = judge(SOFTMAX)
    verdict = evaluation.verdict
    assert (verdict.status, verdict.stage) == (Status.PASSED, Stage.TIMED), verdict.reason
    assert said(evaluation, "device-clock").startswith(
        "timed by a replay of its 1 launches, copies and fills; in its own"
    )
    assert verdict.timing.speedup["eager"].median > 0


@pytest.mark.parametrize(("tries", "said_first"), [(2, "timed by a replay"), (3, "timed in its own process")])
def test_a_replay_whose_addresses_are_taken_is_started_again(judge, monkeypatch, tries, said_first):
    made = []

    def start(*given, **named):
        made.append(1)
        if len(made) <= tries:
            raise AddressTaken("the recorded address is taken")
        return Replay(*given, **named)

    monkeypatch.setattr(recorder, "Replay", start)
    evaluation = judge(f"{SOFTMAX}# {tries}\n")
    assert evaluation.verdict.status is Status.PASSED
    assert said(evaluation, "device-clock").startswith(said_first)


def test_without_a_replay_of_nothing_the_bound_stays(judge, monkeypatch):
    monkeypatch.setattr(EmptyCalls, "_apart", lambda *given: (_ for _ in ()).throw(CannotReplay("no memory for it")))
    monkeypatch.setattr(EmptyCalls, "beyond", uncached(EmptyCalls.beyond))
    evaluation = judge(f"{SOFTMAX}# without\n")
    assert evaluation.verdict.status is Status.PASSED
    assert "certified bound: no memory for it" in said(evaluation, "device-clock")


def uncached(beyond):
    def asked(empties, *given):
        empties._beyond.clear()
        return beyond(empties, *given)

    return asked


def test_a_replay_is_confirmed_in_fresh_processes(judge):
    verdict = judge(SOFTMAX, Confirm()).verdict
    assert (verdict.status, verdict.stage) == (Status.PASSED, Stage.CONFIRMED), verdict.reason
    assert verdict.timing.processes == 5


@pytest.mark.untimed
@pytest.mark.parametrize(
    ("before", "after"),
    [("sum += expf", "sum += 1.01f * expf"), ("c = 0; c < cols; c++) y", "c = 1; c < cols; c++) y")],
    ids=["wrong sum", "a column left out"],
)
def test_a_wrong_kernel_is_refused(judge, before, after):
    source = SOFTMAX.replace(before, after)
    assert source != SOFTMAX
    verdict = judge(source, Check()).verdict
    assert verdict.status is Status.INCORRECT_NUMERICAL, verdict.reason


@pytest.mark.untimed
def test_a_kernel_that_writes_where_nothing_is_ends_its_worker_and_nobody_elses(judge):
    verdict = judge(SOFTMAX.replace("y[r * cols + c] =", "y[(1L << 40) + r * cols + c] ="), Check()).verdict
    assert verdict.status is Status.RUNTIME_ERROR, verdict.reason
    assert judge(SOFTMAX, Check()).verdict.status is Status.PASSED


def test_what_torch_computes_besides_keeps_the_bound(device_referee):
    """It computes less than in the reference: what does all of it is refused where calls are too short for a share."""
    problem = make_problem(LINEAR_PROBLEM, "linear")
    with device_referee.open(problem, backend="cuda", baselines=("eager",)) as session, unscreened(session):
        source = LINEAR.replace("return y", "return y + 0.0")
        evaluation = session.judge(Candidate(problem_id="linear", source=source, backend="cuda"))
    assert evaluation.verdict.status is Status.PASSED, evaluation.verdict.reason
    assert "certified bound: torch computes in its calls: aten.add" in said(evaluation, "device-clock")


def hybrid(stand_in_device, more="pass"):
    return HYBRID.replace("STANDIN", repr(stand_in_device.library)).replace("MORE", more)


@pytest.fixture
def judge_linear(device_referee):
    problem = make_problem(LINEAR_PROBLEM, "linear")
    with device_referee.open(problem, backend="cuda", baselines=("eager",)) as session, unscreened(session):
        yield lambda source: session.judge(Candidate(problem_id="linear", source=source, backend="cuda"))


def test_what_libraries_launch_is_recorded_by_callbacks_and_replayed(judge_linear, stand_in_device):
    evaluation = judge_linear(hybrid(stand_in_device))
    verdict = evaluation.verdict
    assert (verdict.status, verdict.stage) == (Status.PASSED, Stage.TIMED), verdict.reason
    replayed = "timed by a replay of its 3 launches, copies and fills, libraries' included"
    assert said(evaluation, "device-clock").startswith(replayed), said(evaluation, "device-clock")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (
            "library.cuMemcpyHtoDAsync_v2(given[0], b'', c_size_t(0), None)",
            "what its calls do can only be recorded in part: cuMemcpyHtoDAsync",
        ),
        (
            "import kernelwright.inline._cuda as c; given[1].value *= 0.5 if c._recordings else 1.0",
            "its replay answers wrong, so not all of its work was recorded",
        ),
        (
            "len(loaded) > 1 or loaded.append(ctypes.c_uint64()) or library.cuMemAlloc_v2(ctypes.byref(loaded[1]), "
            "c_size_t(1 << 20)); library.cuLaunchKernel(loaded[0], 2, 1, 1, 1, 1, 1, 0, None, "
            "(ctypes.c_void_p * 3)(ctypes.addressof(loaded[1]), values[1], values[2]), None)",
            "its plan cannot be replayed: cuCtxSynchronize: CUDA error 700 "
            "(2 words of its parameters look like addresses outside of its memory)",
        ),
    ],
    ids=["copies from the host", "computes something else while it is recorded", "has memory of its own"],
)
def test_libraries_whose_work_cannot_be_repeated_keep_the_bound(judge_linear, stand_in_device, more, why):
    evaluation = judge_linear(hybrid(stand_in_device, more))
    assert evaluation.verdict.status is Status.PASSED, evaluation.verdict.reason
    first = "torch computes in its calls: rehearsed.scale"
    assert f"certified bound: {first}; with what libraries launch: {why}" in said(evaluation, "device-clock")


def test_zeros_and_copies_of_torch_are_replayed(judge, device_referee, stand_in_device, monkeypatch):
    monkeypatch.setattr(Station.of(device_referee.host, stand_in_device), "shared", "others use this GPU")
    source = SOFTMAX.replace("torch.empty_like(x)", "torch.zeros_like(x)").replace("return y", "return y.clone()")
    evaluation = judge(source)
    assert evaluation.verdict.status is Status.PASSED, evaluation.verdict.reason
    assert said(evaluation, "device-clock").startswith("timed by a replay of its 3 launches, copies and fills")
    assert said(evaluation, "device-shared") == "others use this GPU"


def test_a_plan_that_lacks_a_part_of_the_work_is_not_timed(judge):
    """While it is recorded, the kernel gets fewer rows: what is replayed is not what answers."""
    fewer = "import kernelwright.inline._cuda as c; rows = x.shape[0] // (2 if c._recordings else 1)"
    source = SOFTMAX.replace("kernel[4, 1](x, y, x.shape[0],", f"{fewer}\n        kernel[4, 1](x, y, rows,")
    evaluation = judge(source)
    assert "not all of its work was recorded" in said(evaluation, "device-clock"), evaluation.verdict.reason


def test_a_plan_of_many_megabytes_is_not_read(judge):
    larger = """
import gc

made = next(found for found in gc.get_objects() if type(found).__name__ == "DeviceRunner")


def record(fds, own=made.do_record):
    own(fds)
    made.recorded[0] += b" " * (16 << 20)
    return {"sizes": [len(part) for part in made.recorded]}


made.do_record = record
"""
    assert "no sensible size" in said(judge(SOFTMAX + larger), "device-clock")


def test_a_plan_of_something_quicker_is_not_timed(judge):
    """While it is recorded, the kernel computes each row once. Else it does so again and again, in vain."""
    slow = SOFTMAX.replace(
        "for (int r = blockIdx.x;", "for (int again = 0; again < times; again++) for (int r = blockIdx.x;"
    )
    slow = slow.replace("int rows, int cols) {", "int rows, int cols, int times) {").replace(
        ") y[r *", ") ((volatile float*)y)[r *"
    )
    quick = "import kernelwright.inline._cuda as c; times = 1 if c._recordings else 40"
    slow = slow.replace(
        "kernel[4, 1](x, y, x.shape[0], x.shape[1])",
        f"{quick}\n        kernel[4, 1](x, y, x.shape[0], x.shape[1], times)",
    )
    evaluation = judge(slow)
    assert evaluation.verdict.status is Status.PASSED, evaluation.verdict.reason
    assert "certified bound: it runs something else than was recorded" in said(evaluation, "device-clock")
    assert evaluation.verdict.timing.speedup["eager"].median < 0.5


def test_a_kernel_for_show_is_seen_by_what_others_take(judge):
    """A ghost whose kernels do nothing takes as long, and torch takes all the steps that the reference has."""
    decoy = SOFTMAX.replace(
        "        return y",
        "        z = torch.softmax(x, -1)\n        return torch.where(y == y, z, z)",  # most of y may be NaN
    )
    few = decoy.replace("kernel[4, 1](x, y, x.shape[0],", "kernel[4, 1](x, y, 1,")
    verdict = judge(few, Check()).verdict
    assert verdict.status in (Status.REWARD_HACK, Status.INELIGIBLE), (verdict.status, verdict.reason)


def test_weights_are_written_into_a_replay_by_the_keeper(device_referee):
    problem = make_problem(LINEAR_PROBLEM, "linear")
    with device_referee.open(problem, backend="cuda", baselines=("eager",)) as session:
        evaluation = session.judge(Candidate(problem_id="linear", source=LINEAR, backend="cuda"))
        assert evaluation.verdict.status is Status.PASSED, evaluation.verdict.reason
        assert said(evaluation, "device-clock").startswith("timed by a replay")
        with unscreened(session):
            kept = session.judge(Candidate(problem_id="linear", source=REPACKED, backend="cuda"))
        assert kept.verdict.status is Status.PASSED, kept.verdict.reason
        assert "not all of its work was recorded" in said(kept, "device-clock")
        kept = LINEAR.replace(
            "y = torch.empty", "self.kept = getattr(self, 'kept', self.linear.weight.clone())\n        y = torch.empty"
        )
        stale = kept.replace("kernel[4, 1](x, self.linear.weight,", "kernel[4, 1](x, self.kept,")
        with unscreened(session):
            verdict = session.judge(Candidate(problem_id="linear", source=stale, backend="cuda"), Check()).verdict
        assert verdict.status is Status.INCORRECT_NUMERICAL, verdict.reason
