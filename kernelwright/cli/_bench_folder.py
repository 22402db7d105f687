"""``kernelwright bench report ... --baseline FILE``: figures of what KernelBench's own evaluation said."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwright.cli._common import Common
from kernelwright.cli._tables import table

if TYPE_CHECKING:
    from kernelwright.bench import KernelBenchFigures, KernelBenchRun, Summary
    from kernelwright.config import Settings
    from kernelwright.records import Interval

SUITE = "KernelBench"


def report_folder(
    common: Common,
    folder: Path,
    baselines: Sequence[str],
    level: int | None,
    markdown: Path | None,
    suite_dirs: tuple[Path, ...],
) -> None:
    """Print the figures of a run's folder."""
    from kernelwright.bench import read_run
    from kernelwright.errors import UsageError

    run = read_run(folder)
    if not run.entries:
        hint = "KernelBench's eval_from_generations.py writes it"
        raise UsageError(f"{folder} has no eval_results.json, so nothing was judged", hint=hint)
    known = level or run.level
    if known is None or (level and run.level and level != run.level):
        said = "no kernel's name says its level" if known is None else f"its kernels are of level {run.level}"
        raise UsageError(f"{folder}: {said}", hint="give --level, or leave it out where kernels have one")
    report_claims(common, str(folder), run._replace(level=known), baselines, markdown, suite_dirs)


def report_claims(
    common: Common,
    called: str,
    run: KernelBenchRun,
    baselines: Sequence[str],
    markdown: Path | None,
    suite_dirs: tuple[Path, ...],
) -> None:
    """Print the figures of what KernelBench's evaluation said of a run whose level is known. Nothing is judged.

    The first column is computed as KernelBench's scripts do, from the first sample of each problem; the second one
    counts all samples, and has 95% intervals over problems.
    """
    from rich.markup import escape

    from kernelwright.bench import Asked, break_down, kernelbench_figures, problem_name, read_baseline
    from kernelwright.campaign import write_atomically
    from kernelwright.errors import UsageError

    if not baselines:
        hint = "give KernelBench's results/timing/HARDWARE/NAME.json as --baseline"
        raise UsageError("the figures of a run folder need the times of a baseline", hint=hint)
    assert run.level is not None
    times = {name: read_baseline(path, run.level) for name, path in map(_named, baselines)}
    numbers, whence = _numbers(common.settings(suite_dirs=suite_dirs), run.level, run.entries, times.values())
    outcomes = run.outcomes(times, run.level)
    asked = [Asked(name=problem_name(number), level=run.level) for number in numbers]
    shown: list[Any] = []
    data: dict[str, Any] = {"run": called, "level": run.level, "problems": len(numbers), "baselines": {}}
    pages = [f"# {Path(called).resolve().name}", "", f"Level {run.level}, {len(numbers)} problems ({whence})."]
    for name, milliseconds in times.items():
        own = kernelbench_figures(run.entries, milliseconds, numbers)
        every = break_down(outcomes, asked, name).all
        rows = _rows(own, every)
        made = table("", ">as KernelBench counts", ">all samples", title=f"against {escape(name)}")
        for row in rows:
            made.add_row(*map(escape, row))
        shown.append(made)
        data["baselines"][name] = {"kernelbench": own, "all_samples": every}
        pages += ["", f"## Against {name}", "", *_markdown(("", "as KernelBench counts", "all samples"), rows)]
    if markdown is not None:
        write_atomically(markdown, "\n".join([*pages, ""]))
    head = (
        f"{escape(called)}: level {run.level}, {len(numbers)} problems ({escape(whence)}), {len(run.entries)} samples"
    )
    common.show(data, head, *shown, *([f"written: {escape(str(markdown))}"] if markdown is not None else []))


def _named(given: str) -> tuple[str, Path]:
    """A baseline's name and file; the name is the file's own where none is given."""
    name, equals, file = given.partition("=")
    return (name, Path(file)) if equals and name and "/" not in name else (Path(given).stem, Path(given))


def _numbers(settings: Settings, level: int, entries: Iterable[Any], times: Iterable[Any]) -> tuple[list[int], str]:
    """Numbers of the problems that were asked about, and whence they are known."""
    from kernelwright.datasets import load_suite, suites

    if SUITE in suites(settings.suite_dirs):
        loaded = load_suite(SUITE, level, settings.suite_dirs)
        listed = [problem.number for problem in (*loaded, *loaded.broken) if problem.number is not None]
        return sorted(listed), "of the suite"
    found = {slot.problem for slot in entries}.union(*times)
    return sorted(found), "that the run or a baseline has; with KernelBench's --suite-dir, all of the level"


def _rows(own: KernelBenchFigures, every: Summary) -> list[tuple[str, str, str]]:
    return [
        ("samples", str(own.problems), str(every.samples)),
        ("compiled", _percent(own.compiled / own.problems), f"{_percent(every.compile_rate)} of samples"),
        ("problems solved", _percent(own.correct / own.problems), _percent(every.correct_rate)),
        *((f"pass@{k}", "", _percent(rate)) for k, rate in every.pass_at_k.items()),
        *((f"fast_{p}", f"{own.fast_p[p]:.3f}", f"{every.fast_p[p]:.3f}") for p in own.fast_p),
        ("geometric mean speedup", f"{own.geometric_mean:.4f}", _with_interval(every.geometric_mean)),
        ("median speedup", "", _with_interval(every.median)),
        ("problems that the baseline has", str(own.aligned), ""),
        ("problems with a time", "", str(every.timed)),
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _with_interval(found: Interval | None) -> str:
    return "-" if found is None else f"{found.median:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'|'.join('---' if number == 0 else '--:' for number in range(len(head)))}|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
