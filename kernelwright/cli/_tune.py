"""``kernelwright tune``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelwright.cli._common import EXIT_OF_STATUS, Common, common_options, say
from kernelwright.cli._evaluate import parse_knob
from kernelwright.cli._progress import show_progress
from kernelwright.cli._tables import duration, ratio, short, table
from kernelwright.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from kernelwright.campaign.tune_results import CostModelUse, TuneResult
    from kernelwright.config import Settings
    from kernelwright.records import Candidate, KnobValue, Problem
    from kernelwright.store import RunRow, Store

EXIT_NOT_PASSED = 1


@click.command()
@click.argument("candidate", metavar="CANDIDATE")
@click.option("--problem", "-p", metavar="P", help="The problem of a file; a kernel of the store has its own.")
@click.option(
    "--backend", type=click.Choice(["cpp", "triton", "cuda"]), help="A file's language (default: its kernels')."
)
@click.option("--knob", "knobs", multiple=True, metavar="NAME=VALUE", help="Start from this value (repeatable).")
@click.option(
    "--sampler",
    type=click.Choice(["tpe", "cma-es", "random"]),
    default="tpe",
    show_default=True,
    help="Method that proposes settings, if there are too many to try all.",
)
@click.option(
    "--max-evaluations",
    type=click.IntRange(min=1),
    default=24,
    show_default=True,
    help="Limit of the settings to judge.",
)
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Time limit in seconds, confirmation included.",
)
@click.option("--no-cost-model", is_flag=True, help="Do not order the settings by the store's cost model.")
@click.option("--sandbox", metavar="S", help="bwrap, docker, process or none.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads while timing.")
@click.option(
    "--suite-dir", "suite_dirs", multiple=True, type=click.Path(path_type=Path), help="Folder of more suites."
)
@common_options
def tune(
    common: Common,
    candidate: str,
    problem: str | None,
    knobs: tuple[str, ...],
    backend: str | None,
    sampler: Any,
    max_evaluations: int,
    max_seconds: float,
    no_cost_model: bool,
    **flags: Any,
) -> int:
    """Search for the best values of a candidate's KNOBS, without a language model.

    CANDIDATE is a file, or the hash (or its first digits) of a kernel in the store. Its own setting is judged first;
    every other setting is timed beside the best so far. At the end, the best and the default are confirmed together.
    """
    from kernelwright.campaign import Tuner
    from kernelwright.campaign.tune_results import TunePlan

    settings = common.settings(backend=backend, **flags)
    with common.open_store(settings) as store:
        given, found = _given(store, settings, candidate, problem, dict(parse_knob(text) for text in knobs))
        plan = TunePlan(
            candidate=given.sha256,
            sampler=sampler,
            max_evaluations=max_evaluations,
            max_seconds=max_seconds,
            cost_model=not no_cost_model,
        )
        with show_progress() as listener:
            result = Tuner(settings, store, tell=listener, signals=True).run(given, found, plan)
    return report(common, result)


def _given(
    store: Store, settings: Settings, name: str, problem: str | None, knobs: Mapping[str, KnobValue]
) -> tuple[Candidate, Problem]:
    """The candidate with its knobs set, and its problem.

    Raises:
        UsageError: there is no such file or kernel, or no problem was named for a file.
    """
    from kernelwright.campaign import language_of
    from kernelwright.campaign.api import read_candidate
    from kernelwright.datasets import find_problem

    found = find_problem(problem, settings.suite_dirs) if problem else None
    if Path(name).exists() or name.endswith(".py"):
        if found is None:
            raise UsageError("which problem does the file solve?", hint="name it with --problem")
        given = read_candidate(name, found, backend=settings.backend, knobs=knobs)
        if settings.origin("backend") == "default":
            given = given.model_copy(update={"backend": language_of(given)})
        return given, found
    stored = store.candidate(name, problem=None if found is None else found.id)
    return stored.model_copy(update={"knobs": {**stored.knobs, **knobs}}), found or store.problem(stored.problem_id)


def resume_tuning(
    common: Common, settings: Settings, store: Store, run: RunRow, budgets: Mapping[str, float | None]
) -> int:
    """Continue a tuning run, and print its result. Returns the exit code."""
    from kernelwright.campaign import Tuner

    others = [name for name, value in budgets.items() if value is not None and name != "max_minutes"]
    if others:
        raise UsageError(f"a tuning run has no budget {others[0]}", hint="its budget is --max-minutes")
    with show_progress() as listener:
        tuner = Tuner(settings, store, tell=listener, signals=True)
        result = tuner.resume(run.id, max_minutes=budgets.get("max_minutes"))
    return report(common, result)


def report(common: Common, result: TuneResult) -> int:
    """Print the result of tuning. Returns the exit code."""
    code = EXIT_OF_STATUS.get(result.status, EXIT_NOT_PASSED if result.outcome == "failed" else 0)
    lines: list[str | Table] = [_tried_table(result), _cost_model_line(result.cost_model)]
    walked = "all of them" if result.judged == result.space else f"{result.judged} judged"
    lines.append(f"run {result.run_id}: {result.space} settings, {walked}, {duration(result.seconds)}")
    if result.outcome != "unfinished":
        lines.append(result.summary)
    if result.best:
        lines.append(f"kernel {short(result.best)}")
    common.show({**result.model_dump(mode="json"), "summary": result.summary, "exit_code": code}, *lines)
    if result.status in EXIT_OF_STATUS:
        why = "the time is used up; " if result.reason == "budget" else ""
        say(f"{result.status}: {why}everything finished is saved")
        if result.status != "cancelled":
            more = " --max-minutes M" if result.reason == "budget" else ""
            say(f"resume with: kernelwright resume {result.run_id}{more}{common.store_flag}")
    return code


def _tried_table(result: TuneResult) -> Table:
    """The settings, the fastest first."""
    from rich.markup import escape

    made = table("setting", ">vs the default", ">vs the best so far", "kernel")
    for tried in sorted(result.tried, key=lambda entry: -(entry.speedup or 0.0)):
        name = ", ".join(f"{knob} = {value}" for knob, value in tried.changes.items()) or "the default"
        speed = "-" if tried.speedup is None else f"{tried.speedup:.3f}x"
        raced = "the same machine code" if tried.twin else ratio(tried.ratio)
        if tried.speedup is None and tried.status is not None:
            raced = tried.status.value
        made.add_row(escape(name), speed, escape(raced), short(tried.candidate))
    return made


def _cost_model_line(model: CostModelUse) -> str:
    if model.rank_correlation is None:
        return f"cost model: not used, {model.reason}"
    known = model.rank_correlation
    figures = f"rank correlation {known.median:.2f} [{known.low:.2f}, {known.high:.2f}]"
    learned = f"on held-out problems, from {model.kernels} kernels of {model.problems} problems"
    return f"cost model: {'used' if model.used else f'not used, {model.reason}'}; {figures} {learned}"
