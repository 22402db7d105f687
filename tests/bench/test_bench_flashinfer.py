"""A bench over a FlashInfer-Trace dataset goes back into it: solutions that run, and traces of what was judged."""

from __future__ import annotations

import json

import pytest
import torch
from campaign_fakes import make_evaluation, make_problem

from kernelwright.bench import load_bench, write_flashinfer
from kernelwright.bench._imports import samples_of_solutions
from kernelwright.campaign import SamplePlan, Sampler
from kernelwright.config import Settings
from kernelwright.datasets import load_suite
from kernelwright.errors import InvalidReferenceError, UsageError
from kernelwright.records import Candidate, Status
from kernelwright.store import Sample, Store

DEFINITION = {
    "name": "scale_h8",
    "op_type": "scale",
    "axes": {"rows": {"type": "var"}, "hidden": {"type": "const", "value": 8}},
    "inputs": {
        "x": {"shape": ["rows", "hidden"], "dtype": "float32"},
        "factor": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["rows", "hidden"], "dtype": "float32"}},
    "reference": "def run(x, factor):\n    return x * factor\n",
}
KERNEL = """
import torch

FACTOR = 1


class ModelNew(torch.nn.Module):
    def forward(self, x, factor):
        return x * factor * FACTOR
"""


def workload(rows):
    inputs = {"x": {"type": "random"}, "factor": {"type": "scalar", "value": 2.0}}
    return {"uuid": f"id-{rows}", "axes": {"rows": rows}, "inputs": inputs}


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "set"
    for kind, text in (
        ("definitions/scale/scale_h8.json", json.dumps(DEFINITION)),
        ("workloads/scale/scale_h8.jsonl", "".join(json.dumps({"workload": workload(n)}) + "\n" for n in (3, 5))),
    ):
        path = folder / kind
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return folder


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


def bench(store, tmp_path, problem, evaluations=({},), knobs=None):
    settings = Settings(store=tmp_path / "store.db", cache_dir=tmp_path / "cache")
    made = [
        Candidate(
            problem_id=problem.id, source=f"{KERNEL}# {number}\n", backend="cpp", knobs=knobs or {}, author="offline"
        )
        for number in range(len(evaluations))
    ]
    samples = [Sample(problem=problem.id, number=n, candidate=candidate) for n, candidate in enumerate(made)]
    run_id = Sampler(settings, store).create(SamplePlan(name="my bench", samples=len(made)), [problem], samples)
    for candidate, how in zip(made, evaluations, strict=True):
        if how is not None:
            store.record_evaluation(make_evaluation(candidate, **how), run_id=run_id)
    return load_bench(store, store.run(run_id))


def traces(folder):
    path = folder / "traces" / "offline" / "scale" / "scale_h8.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_judged_kernel_becomes_a_solution_that_runs_and_a_trace_of_its_workload(dataset, store, tmp_path):
    (problem,) = load_suite("flashinfer-trace", suite_dirs=[dataset])
    files = write_flashinfer(dataset, bench(store, tmp_path, problem, knobs={"FACTOR": 3}), "my bench")
    (found,) = traces(dataset)
    assert (found["definition"], found["workload"]) == ("scale_h8", workload(3))
    evaluation = found["evaluation"]
    assert evaluation["status"] == "PASSED"
    assert evaluation["performance"] == {"latency_ms": 0.5, "reference_latency_ms": 1.0, "speedup_factor": 2.0}
    assert evaluation["correctness"]["extra"] == {"error": 1.0, "error_budget": 4.0}

    solution = json.loads(files[0].read_text())
    assert solution["name"] == found["solution"] == "scale_h8_my_bench_0"
    (source,) = solution["sources"]
    assert solution["spec"]["entry_point"] == f"{source['path']}::run"
    space = {}
    exec(source["content"], space)
    assert torch.equal(space["run"](x=torch.ones(2), factor=2.0), torch.full((2,), 6.0))


def test_another_variant_is_a_trace_of_another_workload(dataset, store, tmp_path):
    (problem,) = load_suite("flashinfer-trace", suite_dirs=[dataset])
    write_flashinfer(dataset, bench(store, tmp_path, problem.at_variant(1)), "x")
    assert [found["workload"] for found in traces(dataset)] == [workload(5)]


def test_what_did_not_pass_has_no_time_and_what_was_not_judged_no_trace(dataset, store, tmp_path):
    (problem,) = load_suite("flashinfer-trace", suite_dirs=[dataset])
    ends = ({"status": Status.REWARD_HACK}, {"status": Status.INCORRECT_NUMERICAL}, {"speedup": None}, None)
    files = write_flashinfer(dataset, bench(store, tmp_path, problem, ends), "x")
    assert len([path for path in files if "solutions" in path.parts]) == 4
    hack, wrong = (found["evaluation"] for found in traces(dataset))
    assert (hack["status"], hack["log"]) == ("RUNTIME_ERROR", "REWARD_HACK: it is wrong")
    assert "correctness" not in hack
    assert wrong["status"] == "INCORRECT_NUMERICAL"
    assert "correctness" in wrong
    assert not any("performance" in found for found in (hack, wrong))


def test_solutions_come_back_as_samples(dataset, store, tmp_path):
    (problem,) = load_suite("flashinfer-trace", suite_dirs=[dataset])
    write_flashinfer(dataset, bench(store, tmp_path, problem, ({}, {})), "x")
    found = samples_of_solutions(dataset, [problem], "cpp")
    assert [(s.problem, s.number, s.candidate.author) for s in found.samples] == [
        (problem.id, 0, "offline"),
        (problem.id, 1, "offline"),
    ]
    space = {}
    exec(found.samples[1].candidate.source, space)
    assert torch.equal(space["ModelNew"]()(torch.ones(2), 2.0), torch.full((2,), 2.0))


def solution(**changes):
    spec = {"language": "python", "entry_point": "main.py::run", **changes.pop("spec", {})}
    sources = [{"path": "main.py", "content": "def run(factor, x):\n    return x * factor\n"}]
    return {"name": "s", "definition": "scale_h8", "author": "somebody", "spec": spec, "sources": sources, **changes}


def test_a_function_of_somebody_s_becomes_a_module_by_the_names_of_its_inputs(dataset):
    (problem,) = load_suite("flashinfer-trace", suite_dirs=[dataset])
    (dataset / "solutions").mkdir()
    (dataset / "solutions" / "s.json").write_text(json.dumps(solution()))
    (sample,) = samples_of_solutions(dataset, [problem], "cpp").samples
    space = {}
    exec(sample.candidate.source, space)
    assert torch.equal(space["ModelNew"]()(torch.ones(2), 3.0), torch.full((2,), 3.0))
    assert sample.candidate.author == "somebody"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sources": []}, "not one file"),
        ({"spec": {"entry_point": "main.cu::run"}}, "entry point"),
        ({"spec": {"entry_point": "main.py::launch"}}, "entry point"),
        ({"spec": {"destination_passing_style": True}}, "writes to tensors"),
    ],
)
def test_a_solution_that_cannot_be_a_module_says_why(dataset, changes, why):
    (problem,) = load_suite("flashinfer-trace", suite_dirs=[dataset])
    (dataset / "solutions").mkdir()
    (dataset / "solutions" / "s.json").write_text(json.dumps(solution(**changes)))
    (sample,) = samples_of_solutions(dataset, [problem], "cpp").samples
    assert sample.candidate is None
    assert why in sample.reason
    (dataset / "solutions" / "s.json").write_text(json.dumps(solution(definition="other")))
    with pytest.raises(UsageError, match="no solution to a definition of its own"):
        samples_of_solutions(dataset, [problem], "cpp")


def test_problems_of_other_suites_and_changed_datasets_are_refused(dataset, store, tmp_path):
    with pytest.raises(UsageError, match="is no definition of a FlashInfer-Trace dataset"):
        write_flashinfer(tmp_path / "out", bench(store, tmp_path, make_problem()), "x")


def test_a_dataset_that_has_changed_meanwhile_is_told_of(dataset, store, tmp_path):
    (problem,) = load_suite("flashinfer-trace", suite_dirs=[dataset])
    path = dataset / "workloads" / "scale" / "scale_h8.jsonl"
    path.write_text(path.read_text().splitlines()[1] + "\n")
    with pytest.raises(InvalidReferenceError, match="no workload"):
        write_flashinfer(tmp_path / "out", bench(store, tmp_path, problem), "x")
