"""The report of the results of KernelBench's own evaluation of a run. Nothing in it was judged here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelwright.bench._kernelbench import KernelBenchFigures, KernelBenchRun, kernelbench_figures, problem_name
from kernelwright.bench._report import BenchReport, TableOf, percent, plots_of, with_interval
from kernelwright.bench._summary import Asked, Summary, break_down

_HEAD = ("", "as KernelBench counts", "all samples")


def report_of_claims(
    name: str, run: KernelBenchRun, times: Mapping[str, Mapping[int, float]], numbers: Sequence[int], whence: str
) -> BenchReport:
    """All figures of a run whose level is known, against each baseline.

    The first column is computed as KernelBench's scripts do, from the first sample of each problem. The second column
    counts all samples, and has 95% intervals over problems.

    Args:
        times: milliseconds by problem number, by the baseline's name; at least one.
        numbers: numbers of the problems asked about; at least one. ``whence``: their source, in words.
    """
    assert run.level is not None
    level = run.level
    outcomes = run.outcomes(times, level)
    asked = [Asked(name=problem_name(number), level=level) for number in numbers]
    tables: list[TableOf] = []
    figures: dict[str, dict[str, Any]] = {}
    broken = {baseline: break_down(outcomes, asked, baseline) for baseline in times}
    for baseline, milliseconds in times.items():
        own, every = kernelbench_figures(run.entries, milliseconds, numbers), broken[baseline].all
        tables.append(TableOf(f"Against {baseline}", _HEAD, _rows(own, every)))
        figures[baseline] = {"kernelbench": own, "all_samples": every}
    lines = [f"level {level}, {len(numbers)} problems ({whence}), {len(run.entries)} samples"]
    lines += [said for name, found in figures.items() if (said := _left_out(name, found["kernelbench"]))]
    data: dict[str, Any] = {"run": name, "level": level, "problems": len(numbers), "baselines": figures}
    return BenchReport(name, lines, tables, plots_of(broken, outcomes), data)


def _left_out(baseline: str, own: KernelBenchFigures) -> str:
    """A note on how the mean differs from that of KernelBench's script, and why; empty if it does not."""
    if not own.untimed:
        return ""
    theirs = "end with an error" if own.their_geometric_mean is None else f"give {own.their_geometric_mean:.4g}"
    return (
        f"against {baseline}, {own.untimed} of {own.aligned_correct} right samples have no time and are left out of "
        f"the geometric mean; KernelBench's script would {theirs}"
    )


def _rows(own: KernelBenchFigures, every: Summary) -> list[tuple[str, str, str]]:
    return [
        ("samples", str(own.problems), str(every.samples)),
        ("compiled", percent(own.compiled / own.problems), f"{percent(every.compile_rate)} of samples"),
        ("problems solved", percent(own.correct / own.problems), percent(every.correct_rate)),
        *((f"pass@{k}", "", percent(rate)) for k, rate in every.pass_at_k.items()),
        *((f"fast_{p}", f"{own.fast_p[p]:.3f}", f"{every.fast_p[p]:.3f}") for p in own.fast_p),
        ("geometric mean speedup", f"{own.geometric_mean:.4f}", with_interval(every.geometric_mean)),
        ("right samples with a time", f"{own.aligned_correct - own.untimed} of {own.aligned_correct}", ""),
        ("median speedup", "", with_interval(every.median)),
        ("problems that the baseline has", str(own.aligned), ""),
        ("problems with a time", "", str(every.timed)),
    ]
