"""``kernelwright optimize`` and ``kernelwright resume``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kernelwright.cli._common import (
    EXIT_OF_STATUS,
    Common,
    budget_options,
    common_options,
    own_kernels_option,
    pool_option,
    say,
    stdout_console,
)
from kernelwright.cli._fit import fit_option, fitted_problems
from kernelwright.cli._lint import cell, findings_of_rows, footnotes, known_findings, with_rules
from kernelwright.cli._metrics import metrics_option, run_metrics
from kernelwright.cli._progress import show_progress
from kernelwright.cli._tables import (
    duration,
    language_line,
    result_tables,
    short,
    suite_summary,
    variant_lines,
    weak_sandbox,
)
from kernelwright.errors import InvalidReferenceError, StoreError, UsageError

if TYPE_CHECKING:
    from kernelwright.campaign import CampaignResult, RunResult
    from kernelwright.campaign.estimate import Estimate, RoleEstimate
    from kernelwright.cli._lint import Findings
    from kernelwright.config import Settings
    from kernelwright.errors import KernelwrightError
    from kernelwright.records import KnobValue, Problem

EXIT_NOT_ALL = 1
BUDGET_FLAGS = {
    "max_minutes": "--max-minutes M",
    "max_cost_usd": "--max-cost-usd X",
    "max_tokens": "--max-tokens N",
    "max_device_seconds": "--max-device-seconds S",
}


SUITE = "kernelwright"


class Chosen(NamedTuple):
    """The problems of a job, and a failed row for each file that is not a valid problem."""

    problems: tuple[Problem, ...]
    faults: tuple[RunResult, ...]


def choose_problems(
    names: tuple[str, ...],
    suite: str | None,
    level: int | None,
    everything: bool,
    settings: Settings,
    variant: str | None = None,
    sizes: Mapping[str, KnobValue] | None = None,
    fit: bool = False,
) -> Chosen:
    """The problems that the arguments name, each once, in the order given, with the wanted variant timed.

    Args:
        sizes: constants to set in the problem files that have them.
        fit: make problems smaller that are too large for a small machine.

    Raises:
        UsageError: no problem is named, or an unknown one; a problem has no such variant; none has such a constant.
        InvalidReferenceError: no problem is left, because the named files break the contract.
    """
    from kernelwright.campaign.variants import at_variants
    from kernelwright.datasets import find_problem, load_suite, with_sizes

    found: list[Problem] = []
    faults: dict[str, KernelwrightError] = {}
    for name in names:
        try:
            found.append(find_problem(name, settings.suite_dirs))
        except InvalidReferenceError as error:
            faults[name] = error
    if suite or level is not None or everything:
        loaded = load_suite(suite or SUITE, level, settings.suite_dirs)
        found += loaded
        faults |= {problem.id: problem.error for problem in loaded.broken}
    if not found and faults:
        raise next(iter(faults.values()))
    if not found:
        raise UsageError(
            "which problem?", hint="name one ('kernelwright problems list' shows them), or --suite, --level or --all"
        )
    found = with_sizes(found, sizes or {})
    if fit:
        found = fitted_problems(found, settings)
    distinct = {problem.id: problem for problem in found}.values()
    problems = at_variants(distinct, variant, settings)
    return Chosen(problems, tuple(_fault_row(name, error) for name, error in faults.items()))


def _fault_row(name: str, error: KernelwrightError) -> RunResult:
    from kernelwright.campaign import RunResult
    from kernelwright.records import Status

    return RunResult(problem=name, state="failed", status=Status.INVALID_REFERENCE, reason=str(error))


@click.command()
@click.argument("problems", nargs=-1, metavar="P...")
@click.option("--suite", help=f"All problems of a suite (default with --level and --all: {SUITE}).")
@click.option("--level", type=int, help="Only this level of the suite.")
@click.option("--all", "everything", is_flag=True, help="Every problem of the suite.")
@click.option(
    "--coder", metavar="C", help="Author of kernels: offline, openai:MODEL, anthropic:MODEL, mailbox:DIR, ..."
)
@click.option("--judge", metavar="C", help="Model that gives advice, named as for --coder.")
@click.option("--verifier", metavar="C", help="Model that predicts failures before candidates are judged, or none.")
@click.option("--backend", type=click.Choice(["cpp", "triton", "cuda"]), help="Language of new kernels.")
@click.option(
    "--variant", metavar="V", help="Time this shape variant: its number, its constants (COLUMNS=1025), or all in turn."
)
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds of writing and judging for each problem.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads while timing.")
@click.option(
    "--samples",
    "recipe_samples",
    type=click.IntRange(min=1),
    help="Candidates that a model writes at the same time in a round.",
)
@budget_options
@pool_option
@click.option("--sandbox", metavar="S", help="bwrap, docker, process or none.")
@own_kernels_option
@click.option(
    "--allow-precision", multiple=True, metavar="NAME", help="Allow tf32, bfloat16 or float16 in float32 (repeatable)."
)
@click.option("--recipe", metavar="R", help="Search recipe: a name from 'recipes list', or a TOML file.")
@click.option(
    "--suite-dir", "suite_dirs", multiple=True, type=click.Path(path_type=Path), help="Folder of more suites."
)
@fit_option
@metrics_option
@click.option("--dry-run", is_flag=True, help="Print the plan and its expected cost, and do nothing.")
@common_options
def optimize(
    common: Common,
    problems: tuple[str, ...],
    suite: str | None,
    level: int | None,
    everything: bool,
    variant: str | None,
    fit: bool,
    metrics_port: int | None,
    dry_run: bool,
    **flags: Any,
) -> int:
    """Write, prove and time kernels for problems, and print the winners.

    P is suite/level/name, suite/level/number, a unique name, or a path to a reference file. Without P, a recorded
    coder uses the problems of its recording. --set batch_size=16 also sets constants of problems. Their names then
    contain the constants.
    """
    from kernelwright.agents import coder_from_spec, judge_from_spec, verifier_from_spec
    from kernelwright.agents.llm import recorded_problems
    from kernelwright.campaign import Campaign, run_config, with_recipe

    settings, sizes = common.sized_settings(**flags)
    settings = with_recipe(settings)
    if not (problems or suite or level is not None or everything):
        problems = recorded_problems(settings.coder.model)
    chosen = choose_problems(problems, suite, level, everything, settings, variant, sizes, fit)
    for spec in (settings.coder.model, *settings.models):
        coder_from_spec(spec, settings.backend)
    judge_from_spec(settings.judge.model)
    verifier_from_spec(settings.verifier.model)
    run_config(settings, [problem.id for problem in chosen.problems])  # raises for an invalid search or pool
    if dry_run:
        return _show_plan(common, chosen, settings)
    from kernelwright.campaign.variants import EVERY

    with (
        common.open_store(settings) as store,
        run_metrics(metrics_port, store.path) as heeding,
        show_progress() as listener,
    ):
        campaign = Campaign(settings, store, tell=heeding(listener), signals=True)
        result = campaign.run(chosen.problems, every_variant=variant == EVERY)
        result = result.model_copy(update={"rows": (*result.rows, *chosen.faults)})
        lints = findings_of_rows(store, result.rows, result.run_id, settings)
    return report(common, result, settings, lints)


@click.command()
@click.argument("run_id", metavar="RUN")
@budget_options
@metrics_option
@common_options
def resume(common: Common, run_id: str, metrics_port: int | None, **budgets: float | None) -> int:
    """Continue a run that was interrupted, paused or killed.

    RUN is a run's id, or 'last'. No finished evaluation is repeated, and no reply is paid for twice. Budgets given
    here apply to the whole run.
    """
    from kernelwright.campaign import Campaign
    from kernelwright.cli._runs import find_run
    from kernelwright.cli._tune import resume_tuning

    settings = common.settings()
    with common.open_store(settings) as store:
        run = find_run(store, run_id)
        if run.config.tune is not None:
            if metrics_port is not None:
                raise UsageError(f"run {run.id} tunes one kernel", hint="leave --metrics-port out")
            return resume_tuning(common, settings, store, run, budgets)
        if run.config.recipe == "rl":
            raise UsageError(f"run {run.id} is a training run", hint="kernelwright rl train --resume DIR continues it")
        with run_metrics(metrics_port, store.path) as heeding, show_progress() as listener:
            result = Campaign(settings, store, tell=heeding(listener), signals=True).resume(run.id, **budgets)
        lints = findings_of_rows(store, result.rows, result.run_id, settings)
    return report(common, result, settings.with_values(baselines=run.config.baselines), lints)


def _show_plan(common: Common, chosen: Chosen, settings: Settings) -> int:
    from rich.markup import escape

    from kernelwright.campaign import languages_of, run_config
    from kernelwright.campaign.estimate import estimate
    from kernelwright.datasets import lint_rules

    problems = chosen.problems
    languages = languages_of(run_config(settings, [problem.id for problem in problems]))
    expected = estimate(problems, settings, _mean_seconds(settings))
    most = expected.evaluations
    lints = known_findings(problems, settings)
    data = {
        "dry_run": True,
        "problems": [problem.id for problem in problems],
        "variants": {problem.id: _timed(problem, settings) for problem in problems if problem.variant},
        "lint": {problem: list(lint_rules(found)) for problem, found in lints.items()},
        "broken": [{"problem": row.problem, "reason": row.reason} for row in chosen.faults],
        "coder": settings.coder.model,
        "judge": settings.judge.model,
        "verifier": settings.verifier.model,
        "backend": settings.backend,
        "languages": languages,
        "rounds": settings.rounds,
        "most_candidates": most,
        "cost_usd": expected.cost_usd,
        "models": expected.roles,
        "device_minutes": round(expected.device_minutes, 1),
        "max_minutes": settings.max_minutes,
        "max_cost_usd": settings.max_cost_usd,
        "max_tokens": settings.max_tokens,
        "max_device_seconds": settings.max_device_seconds,
        "sandbox": settings.sandbox,
        "baselines": list(settings.baselines),
        "store": str(settings.store),
    }
    lines = [
        *(f"  {problem.id}{_timed_on(problem, settings)}  (lint: {cell(lints[problem.id])})" for problem in problems),
        *(f"  {row.problem}: {row.reason}" for row in chosen.faults),
        f"{len(problems)} problem{'s' * (len(problems) != 1)}, up to {settings.rounds} rounds each: "
        f"at most {most} candidates, {_cost(expected)}",
        *map(_asked_of, expected.roles),
        f"about {expected.device_minutes:.0f} minutes of the referee",
        f"coder {settings.coder.model}, judge {settings.judge.model}, {language_line(languages)}",
        f"sandbox {settings.sandbox}",
        f"timed against {', '.join(settings.baselines)}; kept in {settings.store}",
        "nothing was done",
    ]
    common.show(data, *map(escape, lines))
    return EXIT_NOT_ALL if chosen.faults else 0


def _timed(problem: Problem, settings: Settings) -> dict[str, KnobValue]:
    """The constants of the variant on which a problem is timed."""
    from kernelwright.campaign import device_class_of

    return problem.meta.variants_for(device_class_of(settings.backend, settings))[0]


def _timed_on(problem: Problem, settings: Settings) -> str:
    from kernelwright.records.verdicts import constants_in_words

    return f"  timed on {constants_in_words(_timed(problem, settings))}" if problem.variant else ""


def _mean_seconds(settings: Settings) -> float | None:
    """The mean time of an evaluation in the store; None without a store. A dry run creates no store."""
    from kernelwright.store import Store

    with suppress(StoreError), Store.open(settings.store, readonly=True) as store:
        return store.mean_evaluation_seconds()
    return None


def _cost(expected: Estimate) -> str:
    if not expected.roles:
        return "at no cost"
    return "at an unknown cost" if expected.cost_usd is None else f"for about ${expected.cost_usd:.2f}"


def _asked_of(role: RoleEstimate) -> str:
    """A role's expected prompts, tokens and price in one line."""
    tokens = f"{role.prompts} prompts, about {role.input_tokens:,} tokens in and {role.output_tokens:,} out"
    if role.worst_usd is None or role.cost_usd is None:
        price = "of unknown price" if role.cost_usd is None else "at no cost"
    else:
        price = f"about ${role.cost_usd:.2f}, at most ${role.worst_usd:.2f} (prices of {role.price_as_of})"
    return f"{role.role} {role.spec}: {tokens}, {price}"


def report(common: Common, result: CampaignResult, settings: Settings, lints: Findings) -> int:
    """Print the result of a run, with the lint findings of its problems. Returns the exit code."""
    code = EXIT_OF_STATUS.get(result.status, 0 if result.all_won else EXIT_NOT_ALL)
    layers = sorted({layer for row in result.rows for layer in row.sandbox})
    data = {
        "run": result.run_id,
        "status": result.status,
        "reason": result.reason,
        "seconds": round(result.seconds, 3),
        "sandbox": layers,
        "exit_code": code,
        "problems": [with_rules(row, lints[row.problem]) for row in result.rows],
    }
    if common.as_json:
        common.show(data)
    else:
        _print_report(result, settings, layers, common.store_flag, lints)
    if result.status in EXIT_OF_STATUS:
        budget = "".join(f" {BUDGET_FLAGS[name]}" for name in result.budgets) if result.reason == "budget" else ""
        why = {"budget": "the budget is used up; ", "replies": "replies or verdicts are awaited; "}.get(
            result.reason, ""
        )
        say(f"{result.status}: {why}everything finished is saved")
        if result.status != "cancelled":
            say(f"resume with: kernelwright resume {result.run_id}{budget}{common.store_flag}")
    return code


def _print_report(
    result: CampaignResult, settings: Settings, layers: list[str], store_flag: str, lints: Findings
) -> None:
    from rich.markup import escape

    console = stdout_console()
    for shown in result_tables(result.rows, settings.baselines, console.width, lints):
        console.print(shown, soft_wrap=isinstance(shown, str))
    for line in footnotes(lints):
        console.print(f"[yellow]{escape(line)}[/yellow]", soft_wrap=True)
    for line in variant_lines(result.rows):
        console.print(escape(line), soft_wrap=True, highlight=False)
    for row in result.rows:
        if row.state == "failed":
            console.print(f"[red]{escape(row.problem)}[/red]: {escape(row.reason)}", soft_wrap=True)
    for line in suite_summary(result.rows, settings.baselines):
        console.print(line, soft_wrap=True, highlight=False)
    if warning := weak_sandbox(layers):
        console.print(f"[yellow]{escape(warning)}[/yellow]", soft_wrap=True)
    right = [row for row in result.rows if row.candidate]
    worked_on = [row for row in result.rows if not row.skipped]
    ended = f", {len(result.unjudged)} without a verdict" if result.unjudged else ""
    count = f"right kernels for {len(right)} of {len(worked_on)} problems"
    console.print(f"run {result.run_id}: {count}{ended}, {duration(result.seconds)}", soft_wrap=True)
    if right:
        speedups = ((row, row.speedup.get(settings.baselines[0])) for row in right)
        first = next((row for row, speedup in speedups if speedup is not None and speedup.faster), right[0])
        export = f"kernelwright kernels export {short(first.candidate)} -o FILE{store_flag}"
        console.print(f"export a kernel: {export}", soft_wrap=True)
