"""``kernelwright runs``."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernelwright.cli._common import Common, budget_options, common_options, stdout_console
from kernelwright.cli._lint import findings_of_rows, footnotes, with_rules
from kernelwright.cli._tables import duration, language_line, plain_text, result_tables, short, table, variant_lines
from kernelwright.cli._watch import head_line, live_lines, problem_line, watch, winner_line
from kernelwright.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from kernelwright.agents import TrackRecord
    from kernelwright.campaign import Elite
    from kernelwright.campaign.searched import SearchView
    from kernelwright.records import RunConfig
    from kernelwright.store import RequestCount, RunCosts, RunRow, Store

_BEFORE_LAST = re.compile(r"last(?:~(\d{1,6}))?")
LIVE = frozenset({"running", "paused", "interrupted"})


def find_run(store: Store, name: str) -> RunRow:
    """The run with that id or unique prefix of an id. ``last`` is the latest run, ``last~1`` the one before.

    Raises:
        UsageError: no run or several runs match.
    """
    if before := _BEFORE_LAST.fullmatch(name):
        found = store.query("SELECT id FROM runs ORDER BY id DESC LIMIT 1 OFFSET ?", [int(before[1] or 0)])
    else:
        found = store.query("SELECT id FROM runs WHERE id >= :name AND id < :name || '~'", {"name": name.upper()})
    if len(found) == 1:
        return store.run(found[0]["id"])
    if not store.runs(limit=1):
        raise UsageError("this store holds no run", hint=f"name another store with --store; this one is {store.path}")
    problem = "no run" if not found else "several runs start with"
    raise UsageError(f"{problem} {name!r}", hint="'kernelwright runs list' shows them; 'last' is the latest")


@click.group()
def runs() -> None:
    """List, show, record, pause and cancel runs, and change their budgets."""


@runs.command("list")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Most runs to show.")
@common_options
def list_runs(common: Common, limit: int) -> None:
    """List the latest runs."""
    from kernelwright.campaign import rows_of

    settings = common.settings()
    with common.open_store(settings, readonly=True) as store:
        found = store.runs(limit=limit)
        rows = {run.id: rows_of(store, run.id) for run in found}
    made = table("run", "status", "started", ">problems", ">right", ">time", "coder")
    data = []
    for run in found:
        right = sum(row.candidate is not None for row in rows[run.id])
        started = str(run.created_at)[:19].replace("T", " ")
        made.add_row(
            run.id, run.status, started, str(len(rows[run.id])), str(right), duration(run.seconds), run.config.coder
        )
        data.append(
            {
                "run": run.id,
                "status": run.status,
                "created_at": run.created_at,
                "problems": len(rows[run.id]),
                "right": right,
                "seconds": run.seconds,
                "coder": run.config.coder,
            }
        )
    common.show({"runs": data}, made if found else "no runs yet: kernelwright optimize P")


@runs.command()
@click.argument("run_id", metavar="RUN")
@click.option("--watch", "watches", is_flag=True, help="Show how the run stands every 2 s (--json: as lines of JSON).")
@common_options
def show(common: Common, run_id: str, watches: bool) -> None:
    """Show one run with its problems. RUN is an id, the start of an id, or 'last'."""
    from rich.markup import escape

    from kernelwright.campaign import languages_of, rows_of
    from kernelwright.campaign.ledger import duplicates_of, verifier_record
    from kernelwright.campaign.live import Watcher

    settings = common.settings()
    with common.open_store(settings, readonly=True) as store:
        run = find_run(store, run_id)
        watcher = Watcher(store, run.id)
        if watches:
            watch(common, watcher)
            return
        standing = watcher.look()
        rows = rows_of(store, run.id)
        lints = findings_of_rows(store, rows, run.id, settings)
        costs, counts = store.run_costs(run.id), store.request_counts(run.id)
        verifier = verifier_record(store, run.id)
        differing = [event.data for event in store.events(run.id, kind="prompt-differs")]
        duplicates = [
            {"problem": problem, **again.model_dump(mode="json")} for problem, again in duplicates_of(store, run.id)
        ]
    config = run.config
    lines = [
        head_line(standing),
        f"coder {config.coder}, judge {config.judge}, {language_line(languages_of(config))}, {config.rounds} rounds, "
        f"sandbox {config.sandbox}, threads {config.threads}",
    ]
    lines += _spending(config, costs, standing.device_seconds)
    lines += map(escape, map(plain_text, filter(None, (problem_line(standing), winner_line(standing)))))
    lines += map(escape, map(plain_text, live_lines(standing)))
    if verifier is not None:
        lines.append(_verifier_line(config.verifier, verifier))
    if duplicates:
        kinds = Counter(str(duplicate["same"]) for duplicate in duplicates)
        told = ", ".join(f"{count} by {kind}" for kind, count in sorted(kinds.items()))
        lines.append(f"duplicates that were not judged again: {told}")
    if differing:
        lines.append(f"replay: {_prompts(len(differing))} from the recording, because measured times differ")
    if run.status in LIVE:
        lines.append(f"resume with: kernelwright resume {run.id}{common.store_flag}")
    data = {
        "run": run.id,
        "status": run.status,
        "seconds": run.seconds,
        "config": config,
        "device_seconds": round(standing.device_seconds, 3),
        "standing": standing,
        "costs": costs,
        "requests": counts,
        "verifier": verifier,
        "prompts_that_differ": differing,
        "duplicates": duplicates,
        "problems": [with_rules(row, lints[row.problem]) for row in rows],
    }
    tables = result_tables(rows, config.baselines, stdout_console().width, lints)
    requests = [_requests_table(counts)] if counts else []
    timed = map(escape, variant_lines(rows))
    common.show(data, *lines, *tables, *timed, *requests, *map(escape, footnotes(lints)))


@runs.command()
@click.argument("run_id", metavar="RUN")
@click.option("--problem", "-p", metavar="P", help="Only this problem: its id, or the end of its id.")
@common_options
def archive(common: Common, run_id: str, problem: str | None) -> None:
    """Show the best kernel of each cell of a run's search, and the gains of its operators.

    RUN is an id, the start of an id, or 'last'. A cell is shown by its kernel's values on the island's axes. Gains and
    costs of older steps count less.
    """
    from kernelwright.campaign import searches_of

    settings = common.settings()
    with common.open_store(settings, readonly=True) as store:
        run = find_run(store, run_id)
        found = searches_of(store, run)
    if problem is not None:
        found = tuple(view for view in found if f"/{view.problem}".endswith(f"/{problem}"))
        if not found:
            raise UsageError(f"run {run.id} searched on no problem {problem!r}", hint="leave --problem out to see all")
    if run.config.search is None:
        shown: list[str | Table] = [f"run {run.id}: the recipe {run.config.recipe} has no evolutionary search"]
    elif not found:
        shown = [f"run {run.id}: nothing was judged yet"]
    else:
        shown = [part for view in found for part in _search_tables(view)]
    common.show({"run": run.id, "recipe": run.config.recipe, "searches": found}, *shown)


def _search_tables(view: SearchView) -> list[str | Table]:
    """One problem's archives."""
    shown: list[str | Table] = [f"{view.problem}: {view.evaluations} evaluations, {view.passed} kernels passed"]
    for island in view.islands:
        begun = f", restarted {island.restarts} times" if island.restarts else ""
        shown.append(f"island {island.name} ({island.backend}): {len(island.elites)} cells{begun}")
        made = table(*island.axes, "kernel", ">speedup", ">times measured", "made by")
        for elite in sorted(island.elites, key=_standing, reverse=True):
            speedup = (
                "-"
                if elite.speedup is None
                else f"{elite.speedup.median:.2f}x [{elite.speedup.low:.2f}, {elite.speedup.high:.2f}]"
            )
            values = [_value(elite.values.get(axis)) for axis in island.axes]
            made.add_row(*values, short(elite.kernel), speedup, str(elite.measurements), elite.operator)
        shown.append(made)
        arms = table("operator", "model", ">steps", ">gain", ">referee", ">cost")
        for arm in sorted(island.arms, key=lambda arm: -arm.gain):
            cost = f"${arm.cost_usd:.4f}" if arm.cost_usd else "-"
            gain = f"{100 * math.expm1(arm.gain):.1f}%"
            arms.add_row(arm.operator, arm.model or "-", f"{arm.steps:.1f}", gain, duration(arm.device_s), cost)
        if island.arms:
            shown.append(arms)
    return shown


def _standing(elite: Elite) -> float:
    return elite.speedup.low if elite.speedup is not None else 0.0


def _value(value: float | str | None) -> str:
    return "?" if value is None else value if isinstance(value, str) else f"{value:.4g}"


def _spending(config: RunConfig, costs: RunCosts, device_s: float) -> list[str]:
    """The lines that say how much of its budgets a run has used."""
    lines = [f"referee {duration(device_s)}{_of(config.max_device_seconds, duration)}"]
    if costs.calls or costs.booked_requests or costs.reused_replies:
        cost = "unknown" if costs.cost_usd is None else f"${costs.cost_usd:.4f}"
        tokens = costs.input_tokens + costs.output_tokens + costs.booked_tokens
        lines.append(
            f"models: {costs.calls} replies, {costs.input_tokens:,} tokens in ({costs.cached_tokens:,} cached), "
            f"{costs.output_tokens:,} out ({costs.reasoning_tokens:,} reasoning); "
            f"{costs.reused_replies} reused from the log"
        )
        lines.append(
            f"cost {cost}{_of(config.max_cost_usd, lambda most: f'${most:.2f}')}, "
            f"{tokens:,} tokens{_of(config.max_tokens, lambda most: f'{most:,.0f}')}"
        )
        if costs.booked_requests:
            lines.append(
                f"of that, {costs.booked_requests} requests of unknown usage, "
                f"booked at their reservation: {costs.booked_tokens:,} tokens, ${costs.booked_cost_usd:.4f}"
            )
    return lines


def _verifier_line(name: str, record: TrackRecord) -> str:
    """How often a run's Verifier was right, in one line."""
    shares = [
        f"{what} {'unknown' if value is None else f'{value:.0%}'}"
        for what, value in (("precision", record.precision), ("recall", record.recall))
    ]
    return (
        f"verifier {name}: {record.standing}, {', '.join(shares)} over {record.judged} verdicts, "
        f"{record.passed_over} candidates not judged"
    )


def _prompts(count: int) -> str:
    return "1 prompt differs" if count == 1 else f"{count} prompts differ"


def _of(most: float | None, shown: Callable[[float], str]) -> str:
    return "" if most is None else f" of {shown(most)}"


def _requests_table(counts: Sequence[RequestCount]) -> Table:
    made = table("role", "ended", "as", ">requests", ">tokens", ">cost")
    for count in counts:
        made.add_row(
            count.role,
            count.outcome or "in flight",
            count.state,
            str(count.requests),
            f"{count.tokens:,}",
            "unknown" if count.cost_usd is None else f"${count.cost_usd:.4f}",
        )
    return made


@runs.command()
@click.argument("run_id", metavar="RUN")
@common_options
def rounds(common: Common, run_id: str) -> None:
    """Show how good the best kernels of a run were after each round."""
    from kernelwright.campaign.rounds import rounds_of

    settings = common.settings()
    with common.open_store(settings, readonly=True) as store:
        run = find_run(store, run_id)
        found = rounds_of(store, run.id)
    baselines = run.config.baselines
    headings = [heading for name in baselines for heading in (f">mean vs {name}", f">beat {name}")]
    made = table(">round", ">judged", ">passed", ">with a kernel", *headings)
    for after in found:
        cells = [
            cell
            for name in baselines
            for cell in (f"{after.mean[name]:.2f}x", f"{after.faster[name]} of {after.problems}")
        ]
        solved = f"{after.solved} of {after.problems}"
        made.add_row(str(after.round), str(after.judged), str(after.passed), solved, *cells)
    data = {"run": run.id, "baselines": baselines, "rounds": found}
    if not found:
        common.show(data, f"run {run.id}: nothing was judged yet")
        return
    common.show(
        data, made, "means are geometric, of each problem's best kernel so far; a problem without one counts as 1x"
    )


@runs.command()
@click.argument("run_id", metavar="RUN")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The file to write."
)
@common_options
def record(common: Common, run_id: str, output: Path) -> None:
    """Write the replies that a run used to a file that --coder replay:FILE --judge replay:FILE can replay."""
    from kernelwright.campaign.recordings import record_run
    from kernelwright.files import write_for_user

    settings = common.settings()
    with common.open_store(settings, readonly=True) as store:
        run = find_run(store, run_id)
        text, count = record_run(store, run.id)
    if not count:
        raise UsageError(f"run {run.id} used no replies of models", hint="its coder and judge were offline")
    write_for_user(output, text)
    common.show({"run": run.id, "replies": count, "file": str(output)}, f"{count} replies of run {run.id}: {output}")


@runs.command()
@click.argument("run_id", metavar="RUN")
@common_options
def pause(common: Common, run_id: str) -> None:
    """Pause a run: its process stops after the work in flight. 'resume' continues the run."""
    settings = common.settings()
    with common.open_store(settings) as store:
        run = find_run(store, run_id)
        if run.status != "running":
            raise UsageError(f"run {run.id} is {run.status}", hint="only a running run can be paused")
        store.set_run_status(run.id, "paused")
    common.show({"run": run.id, "status": "paused"}, f"run {run.id} paused")


@runs.command("set")
@click.argument("run_id", metavar="RUN")
@budget_options
@common_options
def set_budgets(common: Common, run_id: str, **budgets: float | None) -> None:
    """Change the budgets of a run. They apply to the whole run; 'resume' continues it."""
    settings = common.settings()
    given = {name: value for name, value in budgets.items() if value is not None}
    if not given:
        raise UsageError("which budget?", hint="for example --max-cost-usd 20")
    with common.open_store(settings) as store:
        run = find_run(store, run_id)
        config = run.config.model_copy(update=given)
        store.set_run_config(run.id, config)
    common.show({"run": run.id, **given}, f"run {run.id}: {', '.join(f'{k} {v:g}' for k, v in given.items())}")


@runs.command()
@click.argument("run_id", metavar="RUN")
@common_options
def cancel(common: Common, run_id: str) -> None:
    """Cancel a run. A process that drives it stops after the work in flight; the run cannot be resumed."""
    settings = common.settings()
    with common.open_store(settings) as store:
        run = find_run(store, run_id)
        if run.status not in LIVE | {"failed"}:
            raise UsageError(f"run {run.id} is already {run.status}", hint="nothing to cancel")
        store.set_run_status(run.id, "cancelled")
    common.show({"run": run.id, "status": "cancelled"}, f"run {run.id} cancelled")
