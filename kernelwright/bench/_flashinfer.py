"""Writes a bench over a FlashInfer-Trace dataset as solutions and traces of that dataset.

FlashInfer-Bench: https://bench.flashinfer.ai/docs/flashinfer-trace. A solution is a Python file with a function
``run`` that takes the definition's inputs by name. A trace is one line with its result on one workload.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelwright.bench._stored import JudgedSample, StoredBench
from kernelwright.datasets import workload_of
from kernelwright.errors import UsageError
from kernelwright.records import Candidate, Problem, Status

ENTRY = "main.py"
# Other statuses become a runtime error in the dataset, with the status and the reason in its log.
_STATUSES = frozenset(
    {
        Status.PASSED,
        Status.INCORRECT_SHAPE,
        Status.INCORRECT_NUMERICAL,
        Status.INCORRECT_DTYPE,
        Status.RUNTIME_ERROR,
        Status.COMPILE_ERROR,
        Status.TIMEOUT,
    }
)
_RUN = """


_MODEL = ModelNew()


def run({names}):
    return _MODEL({names})
"""


def write_flashinfer(folder: Path, bench: StoredBench, name: str) -> list[Path]:
    """Write solutions and traces into a dataset's folder, besides those that it has. Return the files.

    A trace is of the workload that was timed. Samples that were not judged, or that passed without a time, have a
    solution and no trace. Our errors are not in the dataset's units. So the dataset's error fields are NaN, and our
    errors stand beside them.

    Raises:
        UsageError: a problem is not a definition of such a dataset, or the folder cannot be written.
    """
    from kernelwright.files import write_for_user

    author = bench.run.config.coder.replace("/", "-").replace(":", "-")
    traces: dict[Path, list[str]] = {}
    written = []
    for judged in bench.samples:
        problem, candidate = judged.problem, judged.sample.candidate
        workload = workload_of(problem)
        if workload is None:
            raise UsageError(
                f"{problem.id} is no definition of a FlashInfer-Trace dataset", hint="use --format jsonl for this bench"
            )
        if candidate is None:
            continue
        kind = problem.id.split("/")[1]
        called = "_".join([problem.name, *problem.id.split("@")[1:], name.replace(" ", "_"), str(judged.sample.number)])
        solution = folder / "solutions" / author / kind / problem.name / f"{called}.json"
        write_for_user(solution, json.dumps(_solution(problem, candidate, called, author, judged), indent=1))
        written.append(solution)
        evaluation = _evaluation(judged)
        if evaluation is not None:
            path = folder / "traces" / author / kind / f"{problem.name}.jsonl"
            trace = {"definition": problem.name, "workload": workload, "solution": called, "evaluation": evaluation}
            traces.setdefault(path, []).append(json.dumps(trace))
    for path, lines in traces.items():
        new = {json.loads(line)["solution"] for line in lines}
        kept = [line for line in _lines(path) if json.loads(line).get("solution") not in new]
        write_for_user(path, "\n".join([*kept, *lines, ""]))
    return [*written, *traces]


def _lines(path: Path) -> list[str]:
    """The traces that a file has already.

    Raises:
        UsageError: the file cannot be read, or a line of it is not a trace.
    """
    if not path.exists():
        return []
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if not all(isinstance(json.loads(line), dict) for line in lines):
            raise ValueError("a line is no object")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be added to: {error}", hint="choose another folder") from None
    return lines


def _solution(problem: Problem, candidate: Candidate, called: str, author: str, judged: JudgedSample) -> dict[str, Any]:
    return {
        "name": called,
        "definition": problem.name,
        "author": author,
        "description": "".join(c if c.isprintable() else " " for c in candidate.note),
        "spec": {
            "language": "triton" if candidate.backend == "triton" else "python",
            "target_hardware": ["LOCAL" if judged.evaluation is None else judged.evaluation.environment.device],
            "entry_point": f"{ENTRY}::run",
            "dependencies": ["kernelwright", "torch"],
            "destination_passing_style": False,
        },
        "sources": [{"path": ENTRY, "content": _with_run(candidate, problem)}],
    }


def _with_run(candidate: Candidate, problem: Problem) -> str:
    """The candidate's file, its knobs set, with the function that the dataset calls."""
    from kernelwright.inline import apply_knobs

    source = apply_knobs(candidate.source, candidate.knobs) if candidate.knobs else candidate.source
    return source.rstrip() + _RUN.format(names=", ".join(forward_arguments(problem)))


def forward_arguments(problem: Problem) -> list[str]:
    """The names of the arguments of a definition's reference."""
    model = next(n for n in ast.parse(problem.source).body if isinstance(n, ast.ClassDef) and n.name == "Model")
    forward = next(n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "forward")
    return [argument.arg for argument in forward.args.args[1:]]


def _evaluation(judged: JudgedSample) -> Mapping[str, Any] | None:
    evaluation, verdict = judged.evaluation, judged.verdict
    if evaluation is None or verdict is None:
        return None
    timing = verdict.timing
    reference = None if timing is None else timing.speedup.get("eager")
    if verdict.passed and reference is None:
        return None
    known = verdict.status in _STATUSES
    found: dict[str, Any] = {
        "status": verdict.status.value if known else Status.RUNTIME_ERROR.value,
        "environment": {"hardware": evaluation.environment.device, "libs": {"torch": evaluation.environment.torch}},
        "timestamp": evaluation.created_at,
        "log": verdict.reason if known else f"{verdict.status.value}: {verdict.reason}",
    }
    if verdict.status in (Status.PASSED, Status.INCORRECT_NUMERICAL):
        seen = verdict.correctness
        extra = {} if seen is None else {"error": seen.max_error, "error_budget": seen.error_budget}
        found["correctness"] = {"max_relative_error": "NaN", "max_absolute_error": "NaN", "extra": extra}
    if timing is not None and reference is not None:
        latency = timing.latency_ms.median
        found["performance"] = {
            "latency_ms": latency,
            "reference_latency_ms": latency * reference.median,
            "speedup_factor": reference.median,
        }
    return found
