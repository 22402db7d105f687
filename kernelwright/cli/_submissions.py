"""``kernelwright submissions``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelwright.cli._common import Common, common_options, say
from kernelwright.cli._signals import stop_on_signals
from kernelwright.cli._tables import plain_text, table
from kernelwright.errors import UsageError

if TYPE_CHECKING:
    from kernelwright.submissions import QueueReport, Spool, SubmissionState

EXIT_NOT_PASSED = 1
_DAY_S = 86_400.0
EXIT_MACHINE = 3
EXIT_INTERRUPTED = 130


@click.group()
def submissions() -> None:
    """Judge, list, show and prune submitted kernels."""


@submissions.command()
@click.option("--once", is_flag=True, help="End when all waiting ones were tried; else wait for more.")
@click.option("--limit", type=click.IntRange(min=1), help="End after this many submissions.")
@click.option("--sandbox", metavar="S", help="bwrap, docker, process or none.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads while timing.")
@click.option(
    "--suite-dir", "suite_dirs", multiple=True, type=click.Path(path_type=Path), help="Folder of more suites."
)
@common_options
def judge(common: Common, once: bool, limit: int | None, **flags: Any) -> int:
    """Judge submissions, the oldest first. Each is checked; if it passes, it is confirmed and goes on the board.

    Ctrl-C ends after the session in flight; unfinished submissions wait again. Exit code 1 if one did not pass.
    """
    from kernelwright.submissions import judge_submissions

    settings = common.settings(**flags)
    spool = _spool(common)
    with common.open_store(settings) as store, stop_on_signals("the session in flight") as stopping:
        if not once:
            say("waiting for submissions; Ctrl-C ends")
        report = judge_submissions(
            settings,
            store,
            spool,
            once=once,
            tell=lambda line: say(f"  {plain_text(line)}"),
            stop=stopping.is_set,
            limit=limit,
            wait=stopping.wait,
        )
    waiting = spool.waiting()
    common.show({**report._asdict(), "waiting": waiting}, f"{_in_words(report)}; {waiting} waiting")
    if stopping.is_set():
        say(f"continue with: kernelwright submissions judge{common.store_flag}")
        return EXIT_INTERRUPTED
    if report.put_back:
        return EXIT_MACHINE
    return EXIT_NOT_PASSED if report.refused or report.failed else 0


@submissions.command("list")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Most to show.")
@common_options
def list_submissions(common: Common, limit: int) -> None:
    """List the latest submissions with their states."""
    from rich.markup import escape

    spool = _spool(common)
    found = spool.latest(limit)
    made = table("submission", "submitted", "by", "problem", "state", "status")
    for state in found:
        moment = state.created_at.isoformat(" ", "seconds")[:19]
        status = state.status or plain_text(state.reason)[:60]
        made.add_row(*map(escape, (state.id, moment, state.author, state.problem_id, state.state, status)))
    for stray in spool.strays():
        say(f"left alone: {plain_text(stray.name)}: {stray.reason}")
    data = {"submissions": [_data(state) for state in found], "waiting": spool.waiting()}
    common.show(data, made if found else "no submissions yet")


@submissions.command()
@click.option("--days", type=click.IntRange(min=1), required=True, help="Keep submissions of this many past days.")
@common_options
def prune(common: Common, days: int) -> None:
    """Remove finished submissions that are older. Their kernels and verdicts stay in the store and on the board."""
    removed = _spool(common).prune(days * _DAY_S)
    common.show({"removed": removed}, f"{removed} finished submission{'s' * (removed != 1)} removed")


@submissions.command()
@click.argument("id", metavar="ID")
@common_options
def show(common: Common, id: str) -> None:
    """Show one submission: its state and the reason. --json prints its source too."""
    from rich.markup import escape

    spool = _spool(common)
    state = spool.state(id.upper())
    if state is None:
        raise UsageError(f"no submission {id!r}", hint="'kernelwright submissions list' shows the latest")
    submission = spool.submission(state.id)
    lines = [
        f"submission {state.id}: {state.state}{f', {state.status}' if state.status else ''}",
        f"{state.problem_id} by {state.author}, {state.created_at.isoformat(' ', 'seconds')[:19]}, "
        f"backend {state.backend or 'as its source shows'}",
        *([plain_text(state.reason)] if state.reason else []),
        *(f"evaluation {evaluation}" for evaluation in state.evaluations),
        *([f"note: {plain_text(state.note)}"] if state.note else []),
    ]
    common.show({**_data(state), "source": submission.source if submission else None}, *map(escape, lines))


def _spool(common: Common) -> Spool:
    from kernelwright.submissions import Spool, places

    return Spool(places(common.settings()).spool_dir)


def _data(state: SubmissionState) -> dict[str, Any]:
    return state.model_dump(mode="json")


def _in_words(report: QueueReport) -> str:
    return (
        f"{report.passed} passed, {report.refused} did not pass, {report.failed} could not be judged, "
        f"{report.put_back} to be tried again"
    )
