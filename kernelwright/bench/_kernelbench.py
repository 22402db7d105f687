"""KernelBench's files: a run's folder of kernels with ``eval_results.json``, and the times of baselines.

KernelBench: A. Ouyang et al., "KernelBench: Can LLMs write efficient GPU kernels?" (arXiv 2502.10517). The entries of
its own evaluation are kept unchanged, so that files written again equal the files that were read. Only NaN is replaced
by the values that its scripts write for missing times, see :func:`writable`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from kernelwright.bench._outcomes import Outcome
from kernelwright.errors import UsageError
from kernelwright.evaluator import Result, fast_p, geometric_mean
from kernelwright.files import write_whole
from kernelwright.records import Record

RESULTS = "eval_results.json"
NOT_TIMED = -1.0  # as KernelBench writes it
_NON_FINITE = ("NaN", "Infinity", "-Infinity")
_KERNEL = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")
_NUMBERED = re.compile(r"(\d+)_")
_MOST_SAMPLES = 1_000_000
_MAX_BYTES = 256_000_000
_MAX_KERNEL_BYTES = 8_000_000
_THRESHOLDS = (0.0, 0.5, 0.8, 1.0, 1.5, 2.0)  # from its scripts/benchmark_eval_analysis.py


class Slot(NamedTuple):
    """The numbers of a problem and of one of its samples."""

    problem: int
    sample: int


class KernelBenchRun(NamedTuple):
    """A run's folder.

    Attributes:
        level: level of its problems; None if unknown.
        kernels: source by slot.
        entries: entries of ``eval_results.json`` by slot, each as it was read.
    """

    level: int | None
    kernels: Mapping[Slot, str]
    entries: Mapping[Slot, Mapping[str, Any]]

    def outcomes(self, baselines: Mapping[str, Mapping[int, float]], level: int) -> list[Outcome]:
        """The outcome of each sample by KernelBench's evaluation.

        Args:
            baselines: milliseconds by the baseline's name and the problem's number.
        """
        found = []
        for slot, entry in sorted(self.entries.items()):
            runtime = _runtime(entry)
            times = {name: known[slot.problem] for name, known in baselines.items() if slot.problem in known}
            correct = bool(entry.get("correctness"))
            speedups = {name: time / runtime for name, time in times.items()} if correct and runtime else {}
            compiled = bool(entry.get("compiled"))
            status = "PASSED" if correct else "INCORRECT" if compiled else "COMPILE_ERROR"
            found.append(
                Outcome(
                    problem_name(slot.problem), level, "other", slot.sample, compiled, correct, speedups, status=status
                )
            )
        return found


class KernelBenchFigures(Record):
    """The figures that KernelBench's own analysis prints for a run and a baseline. Only samples with number 0 count.

    Attributes:
        problems: number of problems of the level. ``compiled`` and ``correct``: how many of them are that.
        aligned: number of problems with a known time of the baseline; fast_p is over these. ``aligned_correct``: how
            many of them are correct. ``untimed``: how many of the correct ones have no time.
        geometric_mean: of the speedups of the correct problems with a time; 0 if there are none.
        their_geometric_mean: the mean that KernelBench's script computes. It divides by any stored time, even by -1 or
            NaN. None if the script ends with an error (a time that is not a number).
        fast_p: by p.
    """

    problems: int
    compiled: int
    correct: int
    aligned: int
    aligned_correct: int
    untimed: int
    geometric_mean: float
    their_geometric_mean: float | None
    fast_p: Mapping[str, float]


def problem_name(number: int) -> str:
    """The name of a problem of which only the number is known."""
    return f"problem {number}"


def read_run(folder: Path) -> KernelBenchRun:
    """Read a run's folder with kernels, results, or both.

    Raises:
        UsageError: there is no such folder, it holds no run or kernels of several levels, or a file cannot be read.
    """
    if not folder.is_dir():
        raise UsageError(f"no such folder: {folder}", hint="give the folder of a KernelBench run")
    kernels: dict[tuple[int, Slot], str] = {}
    for path in sorted(folder.iterdir()):
        if named := _KERNEL.fullmatch(path.name):
            level, problem, sample = map(int, named.groups())
            kernels[level, Slot(problem, sample)] = _text(path, _MAX_KERNEL_BYTES)
    levels = sorted({level for level, _ in kernels})
    if len(levels) > 1:
        told = " and ".join(map(str, levels))
        raise UsageError(f"{folder} holds kernels of levels {told}", hint="give one folder for each level")
    results = folder / RESULTS
    entries = read_results(results) if results.exists() else {}
    if not kernels and not entries:
        hint = f"a run has {RESULTS}, or files level_1_problem_2_sample_0_kernel.py"
        raise UsageError(f"{folder} holds no KernelBench run", hint=hint)
    return KernelBenchRun(levels[0] if levels else None, {slot: text for (_, slot), text in kernels.items()}, entries)


def write_run(folder: Path, run: KernelBenchRun) -> None:
    """Write kernels and results into a folder, made if it is missing. Other kinds of files in it stay.

    Raises:
        UsageError: the level of the kernels is unknown, the folder cannot be written, or it holds kernels or results
            of another run, which would be taken for this one's.
    """
    others = _others_in(folder, run)
    if others:
        raise UsageError(
            f"{folder} holds another run: {', '.join(others[:3])}{', ...' if len(others) > 3 else ''}",
            hint="give a new folder, or remove what is in this one",
        )
    if run.kernels and run.level is None:
        raise UsageError("KernelBench names kernels by their level, which is not known", hint="give the level")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for slot, source in run.kernels.items():
            (folder / _kernel_file(run.level, slot)).write_bytes(source.encode())
        if run.entries:
            write_whole(folder / RESULTS, json.dumps(results_json(run.entries), indent=4, allow_nan=False))
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error}", hint="give a folder that can be written") from None


def _kernel_file(level: int | None, slot: Slot) -> str:
    return f"level_{level}_problem_{slot.problem}_sample_{slot.sample}_kernel.py"


def _others_in(folder: Path, run: KernelBenchRun) -> list[str]:
    """The kernel and result files in a folder that writing this run would not replace."""
    own = {_kernel_file(run.level, slot) for slot in run.kernels} | ({RESULTS} if run.entries else set())
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(name for name in names if (name == RESULTS or _KERNEL.fullmatch(name)) and name not in own)


def read_results(path: Path) -> dict[Slot, Mapping[str, Any]]:
    """An ``eval_results.json``: entries by problem and sample.

    Both forms are read: a list of samples for each problem, and one entry for each, as older versions wrote.

    Raises:
        UsageError: the file is missing or malformed; the message names the problem at fault.
    """
    data = _json(path)
    if not isinstance(data, dict):
        raise _malformed(path, "it is no object of problems")
    found: dict[Slot, Mapping[str, Any]] = {}
    for key, value in data.items():
        if not key.isdecimal() or len(key) > 9:
            raise _malformed(path, f"{key[:40]!r} is no number of a problem")
        for entry in value if isinstance(value, list) else [value]:
            sample = entry.get("sample_id", 0) if isinstance(entry, dict) else None
            if type(sample) is not int or not 0 <= sample < _MOST_SAMPLES:
                raise _malformed(path, f"problem {key} has an entry that is no result")
            slot = Slot(int(key), sample)
            if slot in found:
                raise _malformed(path, f"problem {key} has sample {sample} twice")
            found[slot] = entry
    return found


def results_json(entries: Mapping[Slot, Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The content of an ``eval_results.json`` with these entries, by problem and sample in ascending order."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for slot, entry in sorted(entries.items(), key=lambda item: item[0]):
        found.setdefault(str(slot.problem), []).append(writable(entry))
    return found


def writable(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """An entry in a form that KernelBench's scripts and every JSON reader accept.

    A runtime that is NaN or not a number becomes -1, the scripts' value for missing times, because they divide by it.
    Every other NaN or infinity becomes null, because JSON has neither.
    """
    made: dict[str, Any] = _finite(entry)
    if "runtime" in made and (not isinstance(made["runtime"], (int, float)) or isinstance(made["runtime"], bool)):
        made["runtime"] = NOT_TIMED
    return made


def _finite(value: Any) -> Any:
    """The value with None for NaN and infinities, both as numbers and as the texts by which the store keeps them."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if value in _NON_FINITE or (isinstance(value, float) and not math.isfinite(value)) else value


def read_baseline(path: Path, level: int) -> dict[int, float]:
    """Mean milliseconds of a baseline, by problem's number: ``results/timing/HARDWARE/BASELINE.json``.

    Raises:
        UsageError: the file is missing or malformed, or has nothing of that level.
    """
    data = _json(path)
    problems = data.get(f"level{level}") if isinstance(data, dict) else None
    if not isinstance(problems, dict):
        raise _malformed(path, f"it has no level{level}")
    found = {}
    for name, entry in problems.items():
        number = _NUMBERED.match(name)
        mean = entry.get("mean") if isinstance(entry, dict) else None
        if number is None or not _is_time(mean):
            raise _malformed(path, f"{name[:60]!r} has no number, or no mean in milliseconds")
        found[int(number[1])] = float(mean)
    return found


def kernelbench_figures(
    entries: Mapping[Slot, Mapping[str, Any]], baseline: Mapping[int, float], problems: Iterable[int]
) -> KernelBenchFigures:
    """The figures of KernelBench's ``benchmark_eval_analysis.py`` and ``score.py``.

    Rates of compiled and correct problems are over all of the level; fast_p is over those that the baseline has.

    Raises:
        ValueError: there are no problems.
    """
    numbers = sorted(set(problems))
    if not numbers:
        raise ValueError("the figures of a level need its problems")
    first = {number: entries.get(Slot(number, 0), {}) for number in numbers}
    aligned = [number for number in numbers if number in baseline]
    results = [_result(first[number], baseline[number]) for number in aligned]
    speedups = [result.speedup for result in results if result.speedup is not None]
    right = [number for number in aligned if first[number].get("correctness")]
    ratios = [_their_ratio(baseline[number], first[number].get("runtime")) for number in right]
    return KernelBenchFigures(
        problems=len(numbers),
        compiled=sum(bool(entry.get("compiled")) for entry in first.values()),
        correct=sum(bool(entry.get("correctness")) for entry in first.values()),
        aligned=len(aligned),
        aligned_correct=len(right),
        untimed=len(right) - len(speedups),
        geometric_mean=geometric_mean(speedups) if speedups else 0.0,
        their_geometric_mean=_their_mean(ratios),
        fast_p={f"{p:g}": fast_p(results, p) if results else 0.0 for p in _THRESHOLDS},
    )


def _result(entry: Mapping[str, Any], baseline_ms: float) -> Result:
    """The result that fast_p counts there. A runtime of -1 gives a negative speedup, above no p, not even 0."""
    runtime = _runtime(entry)
    counts = bool(entry.get("correctness")) and runtime is not None
    return Result(counts, baseline_ms / runtime if counts and runtime else None)


def _their_ratio(baseline_ms: float, runtime: Any) -> float | None:
    """A speedup as KernelBench's script computes it from any stored time; None if that fails."""
    if not isinstance(runtime, (int, float)):
        return None
    return baseline_ms / runtime if runtime else math.inf


def _their_mean(ratios: Sequence[float | None]) -> float | None:
    """The geometric mean as KernelBench's script computes it: NaN if the product is negative, None if it fails."""
    if not ratios:
        return 0.0
    known = [ratio for ratio in ratios if ratio is not None]
    if len(known) < len(ratios):
        return None
    product = math.prod(known)
    if product < 0 and len(known) > 1:
        return math.nan
    return float(product ** (1 / len(known)))


def _runtime(entry: Mapping[str, Any]) -> float | None:
    """The runtime in milliseconds; None if it was not timed, which is written as -1."""
    runtime = entry.get("runtime")
    return float(runtime) if _is_time(runtime) else None


def _is_time(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path, _MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise _malformed(path, f"it is no JSON: {error}") from None


def _text(path: Path, most: int) -> str:
    try:
        if path.stat().st_size > most:
            raise UsageError(f"{path} is larger than {most / 1e6:.0f} MB", hint="leave it out")
        return path.read_bytes().decode("utf-8-sig")  # a kernel's line ends are part of it
    except FileNotFoundError:
        raise UsageError(f"no such file: {path}", hint="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", hint="give a readable UTF-8 file") from None


def _malformed(path: Path, message: str) -> UsageError:
    return UsageError(f"{path} is malformed: {message}", hint="give a file that KernelBench's scripts wrote")
