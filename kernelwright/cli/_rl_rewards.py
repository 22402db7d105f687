"""``kernelwright rl rewards``: the reward formulas and their rewards."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from kernelwright.cli._common import Common, common_options
from kernelwright.cli._runs import find_run
from kernelwright.cli._tables import ratio, short, table
from kernelwright.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from kernelwright.store import Store, StoredEvaluation

_MOST = 40


@click.command()
@click.option(
    "--evaluation",
    "evaluations",
    multiple=True,
    metavar="ID",
    help="Show each formula's reward for this evaluation of the store (repeatable).",
)
@click.option("--run", "run_id", metavar="RUN", help="Show the rewards for all evaluations of a run, with their mean.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=_MOST,
    show_default=True,
    help="Show only the latest evaluations of a run. The mean is over all of them.",
)
@common_options
def rewards(common: Common, evaluations: tuple[str, ...], run_id: str | None, limit: int) -> None:
    """List the reward formulas, our own and six published ones, with their rewards for a few typical cases.

    With --evaluation or --run: the reward of each formula for evaluations in the store.
    """
    if evaluations and run_id:
        raise UsageError("--evaluation and --run were both given", hint="ask for one of them")
    if not evaluations and run_id is None:
        _show_formulas(common)
        return
    with common.open_store(common.settings(), readonly=True) as store:
        if run_id is None:
            found = [_evaluation(store, name) for name in evaluations]
            _show_paid(common, {}, [_row(store, stored) for stored in found], limit=len(found))
            return
        run = find_run(store, run_id)
        rows = [_row(store, stored) for stored in store.evaluations(run_id=run.id, control=False)]
    if not rows:
        common.show({"run": run.id, "evaluations": [], "mean": {}}, f"run {run.id}: nothing was judged yet")
        return
    _show_paid(common, {"run": run.id}, rows, limit=limit)


def _show_formulas(common: Common) -> None:
    from rich.markup import escape

    from kernelwright.rl import CANONICAL, FORMULAS, payments

    told = table("reward", "pays", "published")
    paid = table("attempt", *(f">{name}" for name in FORMULAS))
    cases = {title: payments(attempt) for title, attempt in CANONICAL.items()}
    for name, formula in FORMULAS.items():
        told.add_row(name, escape(formula.line), escape(f"{formula.source} {formula.url}".rstrip()))
    for title, pays in cases.items():
        paid.add_row(title, *(_number(pays[name]) for name in FORMULAS))
    data = [
        {"name": name, **formula._asdict(), "pays": {title: pays[name] for title, pays in cases.items()}}
        for name, formula in FORMULAS.items()
    ]
    common.show(
        {"formulas": data},
        told,
        paid,
        "sure: the interval of the speedup lies around 2x; noisy: it begins below 1x. cheat, believed: an evaluator "
        "in the cheat's own process calls it right and 50x as fast; cheat, refused: the referee's verdict on it.",
    )


def _evaluation(store: Store, name: str) -> StoredEvaluation:
    try:
        return store.evaluation(name)
    except UsageError as error:
        raise UsageError(
            error.message, hint=f"'kernelwright kernels show HASH' lists a kernel's; the store is {store.path}"
        ) from error


def _row(store: Store, stored: StoredEvaluation) -> dict[str, Any]:
    """An evaluation with the reward of each formula. A kernel that was withdrawn later counts as wrong."""
    from kernelwright.rl import Attempt, payments, runs_of

    verdict = stored.verdict
    attempt = Attempt.of(verdict, stored.candidate, runs_of(store.samples(stored.id)))
    if stored.quarantined is not None:
        attempt = dataclasses.replace(attempt, correct=False, surely=None)
    return {
        "id": stored.id,
        "candidate": verdict.candidate,
        "problem": verdict.problem,
        "status": verdict.status.value,
        "quarantined": stored.quarantined,
        "speedup": verdict.speedup(),
        "rewards": payments(attempt),
    }


def _show_paid(common: Common, head: dict[str, Any], rows: list[dict[str, Any]], *, limit: int) -> None:
    shown = rows[-limit:]
    mean = _means(rows)
    notes = [f"{len(rows) - len(shown)} earlier evaluations: --limit {len(rows)}"] if len(rows) > len(shown) else []
    if any(value is None for row in rows for value in row["rewards"].values()):
        notes.append("none: the formula gives no score, as runs are missing or vary; left out of its mean")
    common.show({**head, "evaluations": shown, "mean": mean}, _paid_table(shown, mean, len(rows)), *notes)


def _paid_table(rows: list[dict[str, Any]], mean: dict[str, float | None], count: int) -> Table:
    from rich.markup import escape

    made = table("evaluation", "kernel", "problem", "status", ">vs eager", *(f">{name}" for name in mean))
    for row in rows:
        made.add_row(
            row["id"],
            short(row["candidate"]),
            escape(row["problem"]),
            "withdrawn" if row["quarantined"] is not None else row["status"],
            escape(ratio(row["speedup"])),
            *(_number(row["rewards"][name]) for name in mean),
        )
    if count > 1:
        made.add_row("mean", "", "", "", "", *(_number(value) for value in mean.values()))
    return made


def _means(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """The mean reward of each formula; None if it gives no score at all."""
    means: dict[str, float | None] = {}
    for name in rows[0]["rewards"]:
        found = [row["rewards"][name] for row in rows if row["rewards"][name] is not None]
        means[name] = sum(found) / len(found) if found else None
    return means


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:.0f}" if value == round(value) else f"{value:.3f}"
