"""``kernelwright bench``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kernelwright.cli._bench_folder import SUITE, report_claims, report_folder, show_report
from kernelwright.cli._bench_work import (
    RECIPE,
    begin_bench,
    begin_references,
    checked_name,
    end_bench,
    exit_code,
    given_budgets,
    given_settings,
    loaded_bench,
    quoted,
    show_baselines,
    the_bench,
    unknown_bench,
    work_on,
)
from kernelwright.cli._common import Common, budget_options, common_options, pool_option
from kernelwright.cli._fit import fit_option
from kernelwright.cli._metrics import metrics_option, run_metrics
from kernelwright.cli._optimize import EXIT_NOT_ALL
from kernelwright.cli._problems import suite_dir_option
from kernelwright.cli._tables import duration, table
from kernelwright.errors import UsageError

if TYPE_CHECKING:
    from kernelwright.bench import Form, Imported, StoredBench
    from kernelwright.config import Settings
    from kernelwright.store import Store

_FLASHINFER = "flashinfer-trace"  # name of the suite that its loader makes of a dataset
_TOLD = 8  # samples without a kernel to list at most
FORMATS = ("kernelbench", "baselines", "leaderboard", "flashinfer", "jsonl", "parquet")
Command = TypeVar("Command", bound=Callable[..., Any])


@click.group()
def bench() -> None:
    """KernelBench-style evaluation: write samples for many problems, judge them, and report the usual metrics."""


def problem_options(command: Command) -> Command:
    """Add options for the problems of a bench and for how they are judged."""
    for option in (
        suite_dir_option,
        fit_option,
        pool_option,
        click.option("--sandbox", metavar="S", help="bwrap, docker, process or none."),
        click.option("--threads", type=click.IntRange(min=1), help="Threads while timing."),
        click.option("--baseline", "baselines", multiple=True, metavar="B", help="Baseline for speedups (repeatable)."),
        click.option("--backend", type=click.Choice(["cpp", "triton", "cuda"]), help="Language of the kernels."),
        click.option("--all", "everything", is_flag=True, help="Every problem of the suite."),
        click.option("--level", type=int, help="Only this level of the suite."),
        click.option("--suite", help="All problems of a suite (default with --level and --all: kernelwright)."),
        click.argument("problems", nargs=-1, metavar="[P...]"),
    ):
        command = option(command)
    return command


def writer_options(command: Command) -> Command:
    """Add options for the author and the number of a bench's samples."""
    for option in (
        click.option("--samples", type=click.IntRange(min=1), help="Samples of each problem (default: 1)."),
        click.option("--coder", metavar="C", help="Author of the samples: offline, openai:MODEL, mailbox:DIR, ..."),
        click.option("--recipe", metavar="R", help=f"Recipe for the samples (default: {RECIPE})."),
        click.argument("name"),
    ):
        command = option(command)
    return command


@bench.command()
@writer_options
@problem_options
@budget_options
@metrics_option
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as an HTML page.")
@click.option(
    "--markdown", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as Markdown with plot files."
)
@common_options
def run(
    common: Common, name: str, metrics_port: int | None, html: Path | None, markdown: Path | None, **asked: Any
) -> int:
    """Write samples, judge them, and report: generate, evaluate and report in one.

    With the NAME of an existing bench, the command continues it. Samples and verdicts that exist are kept.
    """
    settings, _ = common.sized_settings()
    with common.open_store(settings) as store:
        with run_metrics(metrics_port, store.path) as heeding:
            found = begin_bench(common, store, name, **asked)
            budgets = given_budgets(asked)
            result = work_on(common, store, found, write=True, judge=True, budgets=budgets, heeding=heeding)
        return end_bench(common, store, result, name, html=html, markdown=markdown)


@bench.command()
@writer_options
@problem_options
@budget_options
@common_options
def generate(common: Common, name: str, **asked: Any) -> int:
    """Write samples without judging them. A repeated call writes the samples that are missing.

    Exit code 1 if samples are still missing at the end, or if no kernel was written.
    """
    from kernelwright.campaign import plan_of

    settings, _ = common.sized_settings()
    with common.open_store(settings) as store:
        found = begin_bench(common, store, name, **asked)
        result = work_on(common, store, found, write=True, judge=False, budgets=given_budgets(asked))
        samples = store.run_samples(found.id)
    written = sum(sample.candidate is not None for sample in samples)
    empty = len(samples) - written
    missing = plan_of(found).samples * len(found.config.problems) - len(samples)
    code = exit_code(result) or (EXIT_NOT_ALL if missing > 0 or not written else 0)
    data = {"bench": name, "run": found.id, "status": result.status, "reason": result.reason, "samples": len(samples)}
    counts = [f"{len(samples)} sample{'s' * (len(samples) != 1)}", f"{written} kernel{'s' * (written != 1)}"]
    counts += [f"{empty} without a kernel"] if empty else []
    counts += [f"{missing} not answered"] if missing > 0 else []
    common.show(
        {**data, "kernels": written, "missing": max(0, missing), "exit_code": code},
        f"{name}: {', '.join(counts)}",
        *([f"judge them with: kernelwright bench evaluate {quoted(name)}{common.store_flag}"] if written else []),
    )
    return code


@bench.command()
@click.argument("name")
@budget_options
@common_options
def evaluate(common: Common, name: str, **budgets: float | None) -> int:
    """Judge the samples of a bench that were not judged on this machine yet.

    Several processes may run at once, one for each GPU. Each takes problems that no other process works on. Exit code 1
    if the bench has no samples, or if some of them got no verdict.
    """
    settings = common.settings()
    with common.open_store(settings) as store:
        result = work_on(common, store, the_bench(store, name), write=False, judge=True, budgets=budgets)
        return end_bench(common, store, result, name)


@bench.command()
@click.argument("name")
@problem_options
@budget_options
@common_options
def baselines(common: Common, name: str, baselines: tuple[str, ...], **asked: Any) -> int:
    """Time references against themselves and torch.compile (by default in all its modes), as the bench NAME.

    Each reference is also its own candidate, as a control. The number of references that seem faster than themselves
    shows how far times on this machine can be trusted. 'bench export NAME --format baselines' writes KernelBench's
    files of the times.
    """
    settings, _ = common.sized_settings()
    with common.open_store(settings) as store:
        found = begin_references(common, store, name, baselines, **asked)
        result = work_on(common, store, found, write=False, judge=True, budgets=given_budgets(asked))
        loaded = loaded_bench(store, found)
    show_baselines(common, loaded, result, name)
    return exit_code(result)


@bench.command()
@click.argument("target", metavar="NAME|RUN_FOLDER")
@click.option(
    "--baseline",
    "baselines",
    multiple=True,
    metavar="[NAME=]FILE",
    help="Times of a baseline: KernelBench's results/timing/HARDWARE/NAME.json (repeatable).",
)
@click.option(
    "--level", type=click.IntRange(min=1), help="With a folder: level of its problems, if the kernels' names lack it."
)
@click.option("--environment", metavar="ID", help="With a name: environment of the verdicts (default: the latest).")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write an HTML page too.")
@click.option(
    "--markdown",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the report as Markdown with plot files.",
)
@suite_dir_option
@common_options
def report(
    common: Common,
    target: str,
    baselines: tuple[str, ...],
    level: int | None,
    environment: str | None,
    html: Path | None,
    markdown: Path | None,
    suite_dirs: tuple[Path, ...],
) -> None:
    """Report the metrics of a bench, or of the folder of a KernelBench run.

    For a folder, and for an imported bench with --baseline, the report uses the results of KernelBench's own evaluation
    (eval_results.json). Its first column is computed as KernelBench's scripts do, the second over all samples. It has
    95% intervals over problems. Nothing is judged.
    """
    from kernelwright.bench import claims_of_bench, report_of
    from kernelwright.campaign import find_bench

    settings = common.settings()
    for_folder = "/" in target or level is not None
    with common.open_store(settings, readonly=True) as store:
        named = None if for_folder else find_bench(store, target)
        loaded = None if named is None else loaded_bench(store, named, environment)
    if loaded is None and not (for_folder or baselines or Path(target).is_dir()):
        raise unknown_bench(target)
    if loaded is not None and not baselines:
        show_report(common, report_of(loaded, target), html, markdown)
        return
    if environment is not None:  # results of another evaluation have no environment
        hint = "leave it out, or name a bench without --baseline"
        raise UsageError("--environment selects verdicts of the referee, and this report uses KernelBench's", hint=hint)
    claimed = loaded is not None and any(judged.sample.claimed is not None for judged in loaded.samples)
    if loaded is not None and (claimed or not Path(target).is_dir()):
        report_claims(common, target, claims_of_bench(loaded), baselines, html, markdown, suite_dirs)
    else:
        report_folder(common, Path(target), baselines, level, html, markdown, suite_dirs)


@bench.command("list")
@common_options
def list_benches(common: Common) -> None:
    """List the benches of the store, newest first."""
    from rich.markup import escape

    from kernelwright.campaign import plan_of
    from kernelwright.campaign.benches import benches

    settings = common.settings()
    made = table("bench", "run", "status", ">problems", ">samples", ">time", "by")
    data = []
    with common.open_store(settings, readonly=True) as store:
        for found in benches(store):
            count = len(store.run_samples(found.id))
            plan = plan_of(found)
            about = (escape(plan.name), found.id, found.status, str(len(found.config.problems)), str(count))
            made.add_row(*about, duration(found.seconds), escape(found.config.coder))
            data.append({"bench": plan.name, "run": found.id, "status": found.status, "samples": count})
    common.show({"benches": data}, made if data else "this store has no bench yet: 'kernelwright bench run NAME --all'")


@bench.command("import")
@click.argument("source", type=click.Path(path_type=Path), metavar="FOLDER|FILE")
@click.option("--as", "name", required=True, metavar="NAME", help="Name of the new bench.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["kernelbench", "leaderboard", "rows", "flashinfer"]),
    help="Format of the source, if its name and files do not show it.",
)
@click.option("--suite", metavar="SUITE", help=f"Suite of the problems (default: {SUITE}; rows name their own).")
@click.option("--level", type=click.IntRange(min=1), help="Level of the problems, if the kernels' names lack it.")
@click.option("--backend", type=click.Choice(["cpp", "triton", "cuda"]), help="Language, if a kernel does not show it.")
@click.option("--baseline", "baselines", multiple=True, metavar="B", help="Baseline for speedups (repeatable).")
@click.option("--threads", type=click.IntRange(min=1), help="Threads while timing.")
@suite_dir_option
@common_options
def import_run(
    common: Common,
    source: Path,
    name: str,
    form: Form | None,
    suite: str | None,
    level: int | None,
    suite_dirs: tuple[Path, ...],
    **flags: Any,
) -> None:
    """Make a bench of kernels from another project. Their reported results are kept, but do not count as verdicts.

    The source is the folder of a KernelBench run, a submission to its leaderboard (JSON), rows as 'bench export' writes
    them (JSONL or parquet, or their folder), or a FlashInfer-Trace dataset with solutions.
    """
    from rich.markup import escape

    from kernelwright.bench import form_of
    from kernelwright.campaign import SamplePlan, Sampler

    settings = common.settings(suite_dirs=suite_dirs, **given_settings(flags))
    if not source.exists():
        raise UsageError(f"there is no {source}", hint="give the folder of a run, or a file")
    form = form or form_of(source)
    if level is not None and form != "kernelbench":
        raise UsageError("--level is only for a run's folder", hint="leave it out: this format names its problems")
    if suite is not None and form == "rows":
        raise UsageError("--suite is not for rows, which name their problems", hint="leave it out")
    found = _imported(form, source, suite, level, settings)
    most = max((sample.number for sample in found.samples), default=0) + 1
    plan = SamplePlan(name=checked_name(name), samples=most, origin="imported")
    with common.open_store(settings) as store:
        run_id = Sampler(settings, store).create(plan, found.problems, found.samples)
    kernels = sum(sample.candidate is not None for sample in found.samples)
    claimed = sum(sample.claimed is not None for sample in found.samples)
    data = {"bench": name, "run": run_id, "format": form, "kernels": kernels, "claimed": claimed}
    levels = sorted({problem.level for problem in found.problems})
    without = [f"{s.problem}, sample {s.number}: {s.reason}" for s in found.samples if s.candidate is None and s.reason]
    common.show(
        {
            **data,
            "level": levels[0] if len(levels) == 1 else None,
            "levels": levels,
            "without_kernel": without,
            "left_out": found.left_out,
        },
        f"{name}: level {', '.join(map(str, levels))}, {kernels} kernels, {claimed} results of another evaluation",
        *(escape(f"left out: {line}") for line in found.left_out),
        *(escape(f"no kernel: {line}") for line in without[:_TOLD]),
        *([f"and {len(without) - _TOLD} more without a kernel"] if len(without) > _TOLD else []),
        f"judge them with: kernelwright bench evaluate {quoted(name)}{common.store_flag}",
    )


def _imported(form: Form, source: Path, suite: str | None, level: int | None, settings: Settings) -> Imported:
    from kernelwright import bench as benches
    from kernelwright.datasets import find_problem, load_suite

    folders, backend = settings.suite_dirs, settings.backend
    if form == "rows":
        return benches.samples_of_rows(source, lambda asked: find_problem(asked, folders), backend)
    if form == "leaderboard":
        return benches.samples_of_submission(
            source, lambda number: load_suite(suite or SUITE, number, folders), backend
        )
    if form == "flashinfer":
        own = (source,) if (source / "definitions").is_dir() else folders
        return benches.samples_of_solutions(source, load_suite(suite or _FLASHINFER, suite_dirs=own), backend)
    read = benches.read_run(source)
    known = level or read.level
    if known is None or (level and read.level and level != read.level):
        said = "no kernel's name contains its level" if known is None else f"its kernels are of level {read.level}"
        raise UsageError(f"{source}: {said}", hint="give --level, or leave it out if the names contain it")
    return benches.samples_of_run(read, load_suite(suite or SUITE, known, folders), backend)


@bench.command("export")
@click.argument("name")
@click.argument("destination", type=click.Path(path_type=Path), metavar="FOLDER|FILE")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default=FORMATS[0], show_default=True, help="Format of the export."
)
@click.option("--environment", metavar="ID", help="Environment of the verdicts (default: the latest).")
@click.option("--display-name", default="", help="leaderboard: the name on the board.")
@click.option("--organization", default="", help="leaderboard: the organization of the entry.")
@click.option("--notes", default="", help="leaderboard: any other notes.")
@common_options
def export_bench(
    common: Common,
    name: str,
    destination: Path,
    form: str,
    environment: str | None,
    **submission: str,
) -> None:
    """Write a bench in the file formats of other projects.

    kernelbench: a run folder, or one for each of several levels. baselines: a file for each baseline, as in
    KernelBench's results/timing. leaderboard: the JSON that KernelBench's leaderboard accepts. flashinfer: solutions
    and traces of a FlashInfer-Trace dataset. jsonl, parquet: a row for each sample, with a dataset card.
    """
    settings = common.settings()
    with common.open_store(settings, readonly=True) as store:
        loaded = loaded_bench(store, the_bench(store, name), environment)
        written = _write(store, loaded, destination, form, submission, name)
    lines = [f"written: {path}" for path in written]
    common.show({"bench": name, "format": form, "written": [str(path) for path in written]}, *lines)


def _write(
    store: Store, loaded: StoredBench, destination: Path, form: str, submission: Mapping[str, str], name: str
) -> list[Path]:
    from kernelwright.bench import (
        baselines_json,
        runs_of_bench,
        submission_json,
        write_dataset,
        write_flashinfer,
        write_run,
    )
    from kernelwright.files import write_for_user

    if form == "kernelbench":
        runs = runs_of_bench(store, loaded)
        folders = {level: destination / f"level{level}" if len(runs) > 1 else destination for level in runs}
        for level, folder in folders.items():
            write_run(folder, runs[level])
        return list(folders.values())
    if form == "baselines":
        files = {destination / f"{baseline}.json": data for baseline, data in baselines_json(store, loaded).items()}
        for path, data in files.items():
            write_for_user(path, json.dumps(data, indent=1))
        return list(files)
    if form == "leaderboard":
        told = {**submission, "display_name": submission["display_name"] or name}
        write_for_user(destination, json.dumps(submission_json(loaded, **told), indent=1))
        return [destination]
    if form == "flashinfer":
        return write_flashinfer(destination, loaded, name)
    return write_dataset(destination, loaded, name, "parquet" if form == "parquet" else "jsonl")
