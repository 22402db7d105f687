"""Converts benches from and to KernelBench's run folders, baselines and leaderboard, and tables of rows."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelwright import __version__
from kernelwright.bench._kernelbench import NOT_TIMED, KernelBenchRun, Slot, writable
from kernelwright.bench._stored import JudgedSample, StoredBench
from kernelwright.datasets import Suite, UnreadableProblem
from kernelwright.errors import UsageError
from kernelwright.records import Backend, Candidate, Environment, Problem, TimingSample
from kernelwright.records.problems import VARIANT_MARK
from kernelwright.store import Sample

if TYPE_CHECKING:
    from kernelwright.store import Store

CANDIDATE_ROLE = "candidate"


class Imported(NamedTuple):
    """The problems and samples of an import; ``left_out``: problems that cannot be read, and why."""

    problems: Sequence[Problem]
    samples: Sequence[Sample]
    left_out: Sequence[str] = ()


def unreadable_in(problems: Sequence[Problem]) -> tuple[UnreadableProblem, ...]:
    """The files of a suite that cannot be read as problems."""
    return problems.broken if isinstance(problems, Suite) else ()


def left_out(problem: str, samples: int, why: str) -> str:
    """A line that says that the samples of a problem are left out."""
    return f"{samples} sample{'s' * (samples != 1)} of {problem}: {why}"


def samples_of_run(run: KernelBenchRun, problems: Sequence[Problem], backend: Backend) -> Imported:
    """The kernels and entries of a run folder as samples of the problems of its level.

    A sample with an entry and no kernel becomes a sample without a candidate. Samples of problems that cannot be read
    are left out.

    Args:
        problems: problems of the level, found by their numbers.

    Raises:
        UsageError: the run has a problem that is not in ``problems``, or none that can be read.
    """
    from kernelwright.campaign import language_of

    by_number = {problem.number: problem for problem in problems if problem.number is not None}
    broken = {file.number: file for file in unreadable_in(problems) if file.number is not None}
    asked = Counter(slot.problem for slot in {*run.kernels, *run.entries})
    unknown = sorted(set(asked) - set(by_number) - set(broken))
    if unknown or not set(asked) - set(broken):
        told = ", ".join(map(str, (unknown or sorted(asked))[:8]))
        lacks = "that the suite's level lacks" if unknown else "that cannot be read, and no others"
        raise UsageError(
            f"the run has problems {lacks}: {told}",
            hint="give the checkout that the run was made with as --suite-dir",
        )
    samples = []
    for slot in sorted({*run.kernels, *run.entries}):
        if slot.problem in broken:
            continue
        problem = by_number[slot.problem]
        source = run.kernels.get(slot)
        candidate = None
        if source is not None:
            candidate = Candidate(
                problem_id=problem.id, source=source, backend=backend, operator="given", author="imported"
            )
            candidate = candidate.model_copy(update={"backend": language_of(candidate)})
        samples.append(
            Sample(
                problem=problem.id,
                number=slot.sample,
                candidate=candidate,
                reason="" if candidate else "the run has an entry of it, and no kernel",
                claimed=writable(run.entries[slot]) if slot in run.entries else None,
            )
        )
    unread = [left_out(broken[n].id, asked[n], broken[n].error.message) for n in sorted(set(asked) & set(broken))]
    return Imported(list(by_number.values()), samples, unread)


def claims_of_bench(bench: StoredBench) -> KernelBenchRun:
    """The results of another evaluation that came with an imported bench, as a run folder.

    Raises:
        UsageError: no such results came with it, or they are not of a single level of KernelBench.
    """
    claimed = {
        Slot(int(judged.problem.number or 0), judged.sample.number): judged.sample.claimed
        for judged in bench.samples
        if judged.sample.claimed is not None
    }
    if not claimed:
        raise UsageError(
            "no results of another evaluation came with this bench",
            hint="leave --baseline out to see what was judged here",
        )
    _require_numbers(bench)
    if len({problem.level for problem in bench.problems}) > 1:
        raise UsageError("results that came with this bench are of several levels", hint="import one level at a time")
    return KernelBenchRun(bench.problems[0].level, {}, claimed)


def runs_of_bench(store: Store, bench: StoredBench) -> dict[int, KernelBenchRun]:
    """A bench as KernelBench's run folders, one for each level.

    A sample that was judged has an entry for its verdict. Other samples keep the entry that came with them, unchanged.

    Raises:
        UsageError: a problem has no number (KernelBench names kernels by it), or other sizes than its file.
    """
    _require_numbers(bench)
    found: dict[int, tuple[dict[Slot, str], dict[Slot, Mapping[str, Any]]]] = {}
    for judged in bench.samples:
        kernels, entries = found.setdefault(judged.problem.level, ({}, {}))
        slot = Slot(int(judged.problem.number or 0), judged.sample.number)
        if judged.sample.candidate is not None:
            kernels[slot] = _as_set(judged.sample.candidate)
        entry = entry_of(store, judged)
        if entry is not None:
            entries[slot] = entry
    return {level: KernelBenchRun(level, *parts) for level, parts in sorted(found.items())}


def _as_set(candidate: Candidate) -> str:
    """A candidate's file with its knobs set, as other tools need it."""
    from kernelwright.inline import apply_knobs

    return apply_knobs(candidate.source, candidate.knobs) if candidate.knobs else candidate.source


def entry_of(store: Store, judged: JudgedSample) -> Mapping[str, Any] | None:
    """A sample's entry of ``eval_results.json``, times in milliseconds; None if nobody judged it."""
    verdict = judged.verdict
    if judged.evaluation is None or verdict is None:
        if judged.sample.claimed is not None:
            return writable(judged.sample.claimed)
        if judged.sample.candidate is not None:
            return None
        return _entry(judged, compiled=False, correct=False, metadata={"status": "NO_CANDIDATE"}, stats={})
    environment = judged.evaluation.environment
    windows = [s for s in store.samples(judged.evaluation.id) if s.role == CANDIDATE_ROLE]
    metadata = {
        "hardware": environment.device,
        "device": environment.device_class,
        "judge": f"kernelwright {__version__}",
        "status": verdict.status.value,
        **({"reason": verdict.reason} if verdict.reason else {}),
    }
    return _entry(
        judged,
        compiled=judged.was_built,
        correct=verdict.earns,
        metadata=metadata,
        stats=runtime_stats(windows, environment) if verdict.earns and windows else {},
    )


def _entry(
    judged: JudgedSample, *, compiled: bool, correct: bool, metadata: Mapping[str, Any], stats: Mapping[str, Any]
) -> Mapping[str, Any]:
    return {
        "sample_id": judged.sample.number,
        "compiled": compiled,
        "correctness": correct,
        "metadata": metadata,
        "runtime": stats.get("mean", NOT_TIMED),
        "runtime_stats": stats,
    }


def runtime_stats(windows: Sequence[TimingSample], environment: Environment) -> dict[str, Any]:
    """KernelBench's timing statistics in milliseconds over windows of calls: mean, deviation, minimum, maximum.

    Raises:
        ValueError: there are no windows.
    """
    times = [window.latency_ms for window in windows]
    if not times:
        raise ValueError("statistics need at least one window")
    return {
        "mean": statistics.fmean(times),
        "std": statistics.pstdev(times),
        "min": min(times),
        "max": max(times),
        "num_trials": len(times),
        "hardware": environment.device,
        "device": environment.device_class,
    }


def baselines_json(store: Store, bench: StoredBench) -> dict[str, dict[str, dict[str, Any]]]:
    """The times of a bench's baselines: by baseline, then by level (``level1``), then by the problem's file.

    The entry of a baseline has the form of KernelBench's ``results/timing/HARDWARE/NAME.json``. If a problem has
    several samples, the windows of all of them count.

    Raises:
        UsageError: nothing was timed, or a problem has other sizes than its file.
    """
    _require_own_sizes(bench)
    _require_one_name_each(bench, _file_name)
    windows: dict[str, dict[str, dict[str, list[TimingSample]]]] = {}
    for judged in bench.samples:
        if judged.evaluation is None or judged.evaluation.verdict.timing is None:
            continue
        for window in store.samples(judged.evaluation.id):
            if window.role in bench.baselines:
                level = windows.setdefault(window.role, {}).setdefault(f"level{judged.problem.level}", {})
                level.setdefault(_file_name(judged.problem), []).append(window)
    if not windows:
        raise UsageError("nothing of this bench was timed", hint="'kernelwright bench evaluate NAME' times it")
    where = bench.environments[-1]
    return {
        name: {
            level: {file: runtime_stats(found, where) for file, found in files.items()}
            for level, files in levels.items()
        }
        for name, levels in windows.items()
    }


def _file_name(problem: Problem) -> str:
    """KernelBench's name for a problem's file; the name of the real file if there is one."""
    if problem.path is not None:
        return Path(problem.path).name
    return problem.name + ".py" if problem.number is None else f"{problem.number}_{problem.name}.py"


def submission_json(bench: StoredBench, display_name: str, organization: str = "", notes: str = "") -> dict[str, Any]:
    """A submission to KernelBench's leaderboard: one kernel for each problem, by level and number.

    Of several samples, the fastest that passed is taken, else the first. A problem without a kernel is left out.

    Raises:
        UsageError: a problem has no number, or other sizes than its file.
    """
    _require_numbers(bench)
    kernels = {}
    for problem in bench.problems:
        own = [
            found for found in bench.samples if found.problem.id == problem.id and found.sample.candidate is not None
        ]
        if own:
            best = max(own, key=_merit)
            assert best.sample.candidate is not None
            kernels[f"level_{problem.level}_problem_{problem.number}_sample_0"] = _as_set(best.sample.candidate)
    return {
        "metadata": {"display_name": display_name, "organization": organization, "notes": notes},
        "kernels": kernels,
    }


def _merit(found: JudgedSample) -> tuple[bool, float, int]:
    verdict = found.verdict
    earns = verdict is not None and verdict.earns
    speedup = None if verdict is None or verdict.timing is None else next(iter(verdict.timing.speedup.values()), None)
    return earns, speedup.low if speedup is not None else 0.0, -found.sample.number


def rows_of_bench(bench: StoredBench) -> Iterable[dict[str, Any]]:
    """Yield a flat row for each sample with its kernel, its verdict and its claims; None for unknown values."""
    for found in bench.samples:
        candidate, verdict = found.sample.candidate, found.verdict
        timing = None if verdict is None else verdict.timing
        row: dict[str, Any] = {
            "problem": found.problem.id,
            "suite": found.problem.suite,
            "level": found.problem.level,
            "number": found.problem.number,
            "category": found.problem.meta.category,
            "problem_sha256": found.problem.sha256,
            "sample": found.sample.number,
            "candidate": None if candidate is None else candidate.sha256,
            "source": None if candidate is None else _as_set(candidate),
            "backend": None if candidate is None else candidate.backend,
            "author": None if candidate is None else candidate.author,
            "status": None if verdict is None else verdict.status.value,
            "stage": None if verdict is None or verdict.stage is None else verdict.stage.value,
            "reason": verdict.reason if verdict is not None else found.sample.reason,
            "correct": None if verdict is None else verdict.earns,
            "kernelbench_correct": None if verdict is None else found.right_by_kernelbench,
            "latency_ms": None if timing is None else timing.latency_ms.median,
            "own_kernel_share": None if verdict is None else verdict.own_kernel_share,
            "environment": None if verdict is None else verdict.environment,
            "device": None if found.evaluation is None else found.evaluation.environment.device,
            "claimed": None if found.sample.claimed is None else json.dumps(found.sample.claimed, sort_keys=True),
        }
        for name in bench.baselines:
            speedup = None if timing is None else timing.speedup.get(name)
            key = name.replace("-", "_")
            row[f"speedup_{key}"] = None if speedup is None else speedup.median
            row[f"speedup_{key}_low"] = None if speedup is None else speedup.low
            row[f"speedup_{key}_high"] = None if speedup is None else speedup.high
        yield row


def _require_own_sizes(bench: StoredBench) -> None:
    """Refuse problems in other sizes and variants. KernelBench's files know a problem only by its number or file name,
    so the times would be taken for those of the sizes in that file."""
    changed = next((problem.id for problem in bench.problems if VARIANT_MARK in problem.id), None)
    if changed is not None:
        raise UsageError(
            f"{changed} has other sizes than its file's first ones, and KernelBench's files cannot say so",
            hint="use --format jsonl, which keeps them, or a bench in the problems' own sizes",
        )


def _require_numbers(bench: StoredBench) -> None:
    unnumbered = next((problem.id for problem in bench.problems if problem.number is None), None)
    if unnumbered is not None:
        raise UsageError(
            f"{unnumbered} has no number; KernelBench names problems by it", hint="use --format jsonl for this bench"
        )
    _require_own_sizes(bench)
    _require_one_name_each(bench, lambda problem: str(problem.number))


def _require_one_name_each(bench: StoredBench, name: Callable[[Problem], str]) -> None:
    """Refuse problems that KernelBench cannot tell apart: variants or sizes of one file, or from several suites."""
    seen: dict[tuple[int, str], str] = {}
    for problem in bench.problems:
        other = seen.setdefault((problem.level, name(problem)), problem.id)
        if other != problem.id:
            raise UsageError(
                f"{other} and {problem.id} are one problem to KernelBench", hint="use --format jsonl for this bench"
            )


def reference_samples(problems: Sequence[Problem], backend: Backend) -> list[Sample]:
    """A sample for each problem in which its reference takes the place of a kernel, as a control."""
    return [
        Sample(
            problem=problem.id,
            number=0,
            candidate=Candidate(
                problem_id=problem.id,
                source=f"{problem.source.rstrip()}\n\n\nModelNew = Model\n",
                backend=backend,
                operator="given",
                author="reference",
            ),
        )
        for problem in problems
    ]
