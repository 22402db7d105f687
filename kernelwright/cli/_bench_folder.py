"""Show and write reports of benches, and of the results of KernelBench's own evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwright.cli._common import Common
from kernelwright.cli._tables import table

if TYPE_CHECKING:
    from kernelwright.bench import BenchReport, KernelBenchRun
    from kernelwright.config import Settings

SUITE = "KernelBench"


def report_folder(
    common: Common,
    folder: Path,
    baselines: Sequence[str],
    level: int | None,
    html: Path | None,
    markdown: Path | None,
    suite_dirs: tuple[Path, ...],
) -> None:
    """Print the report on the folder of a KernelBench run."""
    from kernelwright.bench import read_run
    from kernelwright.errors import UsageError

    run = read_run(folder)
    if not run.entries:
        hint = "KernelBench's eval_from_generations.py writes it"
        raise UsageError(f"{folder} has no eval_results.json, so nothing was judged", hint=hint)
    known = level or run.level
    if known is None or (level and run.level and level != run.level):
        said = "no kernel's name contains its level" if known is None else f"its kernels are of level {run.level}"
        raise UsageError(f"{folder}: {said}", hint="give --level, or leave it out if the names contain it")
    report_claims(common, str(folder), run._replace(level=known), baselines, html, markdown, suite_dirs)


def report_claims(
    common: Common,
    called: str,
    run: KernelBenchRun,
    baselines: Sequence[str],
    html: Path | None,
    markdown: Path | None,
    suite_dirs: tuple[Path, ...],
) -> None:
    """Print the report on KernelBench's own results of a run whose level is known. Nothing is judged."""
    from kernelwright.bench import read_baseline, report_of_claims
    from kernelwright.errors import UsageError

    if not baselines:
        hint = "give KernelBench's results/timing/HARDWARE/NAME.json as --baseline"
        raise UsageError("the figures of a run folder need the times of a baseline", hint=hint)
    assert run.level is not None
    times = {name: read_baseline(path, run.level) for name, path in map(_named, baselines)}
    numbers, whence = _numbers(common.settings(suite_dirs=suite_dirs), run.level, run.entries, times.values())
    show_report(common, report_of_claims(called, run, times, numbers, whence), html, markdown)


def _named(given: str) -> tuple[str, Path]:
    """A baseline's name and file. The default name is the stem of the file's name."""
    name, equals, file = given.partition("=")
    return (name, Path(file)) if equals and name and "/" not in name else (Path(given).stem, Path(given))


def _numbers(settings: Settings, level: int, entries: Iterable[Any], times: Iterable[Any]) -> tuple[list[int], str]:
    """The numbers of a level's problems, and a phrase that says which problems these are."""
    from kernelwright.datasets import load_suite, suites

    if SUITE in suites(settings.suite_dirs):
        loaded = load_suite(SUITE, level, settings.suite_dirs)
        listed = [problem.number for problem in (*loaded, *loaded.broken) if problem.number is not None]
        return sorted(listed), "of the suite"
    found = {slot.problem for slot in entries}.union(*times)
    return sorted(found), "that the run or a baseline has; with KernelBench's --suite-dir, all of the level"


def show_report(
    common: Common,
    made: BenchReport,
    html: Path | None,
    markdown: Path | None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Print a report, and write it as files.

    Args:
        more: further fields of the JSON output.
    """
    from rich.markup import escape

    from kernelwright.bench import html_of, markdown_of
    from kernelwright.files import write_for_user

    written = []
    if html is not None:
        write_for_user(html, html_of(made))
        written.append(html)
    if markdown is not None:
        plots = {plot.name: markdown.with_name(f"{markdown.stem}-{plot.name}.svg") for plot in made.plots}
        for plot in made.plots:
            write_for_user(plots[plot.name], f"{plot.svg}\n")
        write_for_user(markdown, markdown_of(made, {plot: path.name for plot, path in plots.items()}))
        written += [markdown, *plots.values()]
    shown: list[Any] = []
    for part in made.tables:
        head = [text if number == 0 else f">{text}" for number, text in enumerate(part.head)]
        drawn = table(*head, title=escape(part.title))
        for row in part.rows:
            drawn.add_row(*map(escape, row))
        shown.append(drawn)
    data = {**made.data, **(more or {})}
    common.show(data, *map(escape, made.lines), *shown, *(escape(f"written: {path}") for path in written))
