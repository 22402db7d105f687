"""Where nothing can be timed, a model of a GPU orders Triton candidates and says why, and claims no measurement."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

from kernelwright.agents.expected_order import FORETOLD, MOST, in_expected_order
from kernelwright.agents.roles import Workbench
from kernelwright.agents.static_rank import describe_static, static_score
from kernelwright.evaluator.profile.expected import EXPECTED, KernelFacts
from kernelwright.records import KernelResources, Profile
from kernelwright.sandbox import WorkerFailed

ROOT = Path(__file__).parents[2]
FACTS = KernelFacts(
    kernel="k", programs=8192, threads=128, resident=10, instructions=300, shared_bytes=0, crossed=0.0,
    spilled_bytes=0, waits=1.0, bytes_read=1e8, bytes_written=1e8, bytes_asked=2e8, matrix_flops=0.0,
)  # fmt: skip


def context(answer):
    meta = SimpleNamespace(variants_for=lambda name: [{"N": 3 if name == "gpu" else 1}], mode="eval")
    return SimpleNamespace(problem=SimpleNamespace(source="p", meta=meta), bench=Workbench(answer))


def steps(megabytes):
    return [dataclasses.asdict(dataclasses.replace(FACTS, bytes_read=1e6 * megabytes))]


def test_untried_schedules_come_in_the_order_of_their_expected_times():
    asked = []

    def answer(entry, payload):
        asked.append(payload)
        return {"candidates": [steps(300), None, steps(100), steps(301)]}

    schedules = [{"BLOCK": number} for number in range(4)]
    assert in_expected_order(context(answer), ["a", "b", "c", "d"], schedules) == [2, 0, 3, 1]
    assert asked[0]["sources"] == ["a", "b", "c", "d"]
    assert (asked[0]["variant"], asked[0]["architectures"]) == ({"N": 3}, [90])


def test_choices_that_are_not_foretold_change_no_order():
    answer = context(lambda entry, payload: {"candidates": [steps(300), steps(200), steps(100)]})
    schedules = [{"TILE": 1, "fusion": "full"}, {"TILE": 2, "fusion": "full"}, {"TILE": 3, "fusion": "none"}]
    assert in_expected_order(answer, ["a", "b", "c"], schedules) == [2, 0, 1]
    record = ROOT / "benchmarks" / "results" / "h100" / "gpu_model.json"
    assert list(FORETOLD) == json.loads(record.read_text())["foretold"]


def test_no_more_are_compiled_than_are_worth_it_and_a_failure_changes_no_order():
    sources = [str(number) for number in range(MOST + 2)]
    many = context(lambda entry, payload: {"candidates": [steps(500 - 30 * int(s)) for s in payload["sources"]]})
    schedules = [{"BLOCK": number} for number in range(MOST + 2)]
    assert in_expected_order(many, sources, schedules) == [*reversed(range(MOST)), MOST, MOST + 1]

    def refuse(entry, payload):
        raise WorkerFailed("it ended", kind="exception")

    assert in_expected_order(context(refuse), sources, schedules) == list(range(MOST + 2))


def profile(us, **known):
    kernel = KernelResources(kernel="k", architecture="sm_90", **{"registers": 32, "occupancy": 1.0, **known})
    note = f"{EXPECTED}: {us:.0f} us a forward on an H100; memory: 200 MB"
    return Profile(rung="static", kernels=(kernel,), metrics={"expected_us": us}, notes=("other", note))


def test_the_expected_time_ranks_before_all_else_where_it_tells_kernels_apart():
    assert static_score(profile(100.0, instructions=900), 9e9) > static_score(profile(150.0, instructions=9), 1.0)
    assert static_score(profile(100.0, instructions=9), 1.0) > static_score(profile(100.5, instructions=900), 1.0)
    unknown = Profile(rung="static", kernels=profile(1.0).kernels)
    assert static_score(profile(1e6), 1.0) > static_score(unknown, 1.0)


def test_the_judge_reads_it_as_an_expectation():
    said = describe_static(profile(100.0))
    assert said.startswith("sm_90: 1 kernel, 32 registers")
    assert "expected by a model, not measured: 100 us a forward on an H100; memory: 200 MB" in said
