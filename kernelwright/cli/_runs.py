"""``kernelwright runs``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kernelwright.cli._common import Common, common_options, stdout_console
from kernelwright.cli._lint import findings_of_rows, footnotes, with_rules
from kernelwright.cli._tables import duration, result_tables, table
from kernelwright.errors import UsageError

if TYPE_CHECKING:
    from kernelwright.store import RunRow, Store

LAST = "last"
LIVE = frozenset({"running", "paused", "interrupted"})


def find_run(store: Store, name: str) -> RunRow:
    """A run by its id, by a unique prefix of it, or the latest one for ``last``.

    Raises:
        UsageError: none, or several.
    """
    known = store.runs(limit=1000)
    if name == LAST:
        found = known[:1]
    else:
        found = [run for run in known if run.id == name] or [run for run in known if run.id.startswith(name.upper())]
    if len(found) == 1:
        return found[0]
    if not known:
        raise UsageError("this store holds no run", hint=f"look in another one with --store; this is {store.path}")
    problem = "no run" if not found else "several runs start with"
    raise UsageError(f"{problem} {name!r}", hint="'kernelwright runs list' shows them; 'last' is the latest")


@click.group()
def runs() -> None:
    """List, show and cancel runs."""


@runs.command("list")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most so many.")
@common_options
def list_runs(common: Common, limit: int) -> None:
    """The latest runs."""
    from kernelwright.campaign import rows_of

    settings = common.settings()
    with common.open_store(settings, readonly=True) as store:
        found = store.runs(limit=limit)
        rows = {run.id: rows_of(store, run.id) for run in found}
    made = table("run", "status", "started", ">problems", ">won", ">time", "coder")
    data = []
    for run in found:
        won = sum(row.candidate is not None for row in rows[run.id])
        started = str(run.created_at)[:19].replace("T", " ")
        made.add_row(
            run.id, run.status, started, str(len(rows[run.id])), str(won), duration(run.seconds), run.config.coder
        )
        data.append(
            {
                "run": run.id,
                "status": run.status,
                "created_at": run.created_at,
                "problems": len(rows[run.id]),
                "won": won,
                "seconds": run.seconds,
                "coder": run.config.coder,
            }
        )
    common.show({"runs": data}, made if found else "no runs yet: kernelwright optimize P")


@runs.command()
@click.argument("run_id", metavar="RUN")
@common_options
def show(common: Common, run_id: str) -> None:
    """One run with its problems. RUN is an id, its beginning, or 'last'."""
    from rich.markup import escape

    from kernelwright.campaign import rows_of

    settings = common.settings()
    with common.open_store(settings, readonly=True) as store:
        run = find_run(store, run_id)
        rows = rows_of(store, run.id)
        lints = findings_of_rows(store, rows, run.id, settings)
    config = run.config
    lines = [
        f"run {run.id}: {run.status}, {duration(run.seconds)}",
        f"coder {config.coder}, judge {config.judge}, backend {config.backend}, {config.rounds} rounds, "
        f"sandbox {config.sandbox}, threads {config.threads}",
    ]
    if run.status in LIVE:
        lines.append(f"resume with: kernelwright resume {run.id}{common.store_flag}")
    data = {
        "run": run.id,
        "status": run.status,
        "seconds": run.seconds,
        "config": config,
        "problems": [with_rules(row, lints[row.problem]) for row in rows],
    }
    tables = result_tables(rows, config.baselines, stdout_console().width, lints)
    common.show(data, *lines, *tables, *map(escape, footnotes(lints)))


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
