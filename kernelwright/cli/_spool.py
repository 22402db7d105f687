"""``kernelwright worker`` and ``kernelwright spool``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelwright.cli._common import Common, common_options, say
from kernelwright.cli._metrics import metrics_option, worker_metrics
from kernelwright.cli._signals import stop_on_signals
from kernelwright.cli._tables import plain_text, table

if TYPE_CHECKING:
    from kernelwright.pool import SpoolFolder

EXIT_REFUSED = 1
EXIT_INTERRUPTED = 130
_FOLDER = click.Path(path_type=Path, file_okay=False)
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.option("--spool", "folder", type=_FOLDER, required=True, metavar="DIR", help="The spool; made if it is missing.")
@click.option("--until-empty", is_flag=True, help="End when no job is left; else wait for more.")
@click.option(
    "--max-minutes", type=click.FloatRange(min=0, min_open=True), help="Begin no job that would end after this time."
)
@click.option("--sandbox", metavar="S", help="bwrap, docker, process or none.")
@metrics_option
@common_options
def worker(
    common: Common,
    folder: Path,
    until_empty: bool,
    max_minutes: float | None,
    metrics_port: int | None,
    **flags: Any,
) -> int:
    """Judge the jobs of a spool on this machine.

    'kernelwright optimize --pool spool:DIR' writes the jobs. Any number of workers may share a spool. Ctrl-C ends after
    the job in flight; press it again to give the job back. Exit code 1 if jobs were left that this worker may not do.
    """
    from kernelwright.pool import OwnSeat, SpoolFolder, Worker

    spool, seat = SpoolFolder(folder, create=True), OwnSeat(common.settings(**flags))
    with worker_metrics(metrics_port, SpoolFolder(folder)), stop_on_signals("the job in flight") as stopping:
        say(f"worker of {spool.path}; Ctrl-C ends")
        report = Worker(
            spool, seat, tell=lambda line: say(f"  {plain_text(line)}"), stop=stopping.is_set, wait=stopping.wait
        ).run(until_empty=until_empty, within_s=None if max_minutes is None else 60.0 * max_minutes)
    others = {"without a verdict": report.faults, "too late": report.late, "left alone": report.refused}
    said = [f"{report.judged} judged", *(f"{count} {what}" for what, count in others.items() if count)]
    common.show(report._asdict(), f"{', '.join(said)}; {report.why}")
    if stopping.is_set():
        return EXIT_INTERRUPTED
    return EXIT_REFUSED if report.refused else 0


@click.group()
def spool() -> None:
    """Show a spool, and carry it between machines as one file."""


@spool.command()
@click.argument("folder", type=_FOLDER, metavar="DIR")
@common_options
def show(common: Common, folder: Path) -> None:
    """Show the jobs and the workers of a spool."""
    from rich.markup import escape

    state = _opened(folder).state()
    made = table("worker", "judged", "device", "kernelwright", "doing")
    for beat in state.workers:
        devices = dict.fromkeys(found.device for found in beat.card.environments.values())
        made.add_row(*map(escape, (beat.worker, str(beat.done), ", ".join(devices), beat.card.version, beat.doing[:8])))
    text = f"{state.waiting} waiting, {state.claimed} claimed, {state.answered} answered"
    data = {**state._asdict(), "workers": [beat.model_dump(mode="json") for beat in state.workers]}
    common.show(data, text, *([made] if state.workers else ["no worker has been here yet"]))


@spool.command()
@click.argument("folder", type=_FOLDER, metavar="DIR")
@click.option("-o", "--output", type=_FILE, required=True, metavar="FILE", help="The zip file to write.")
@common_options
def pack(common: Common, folder: Path, output: Path) -> None:
    """Write the jobs and answers of a spool into one file. The spool stays as it is."""
    from kernelwright.pool import pack as pack_spool

    _tell(common, "packed", pack_spool(_opened(folder), output), output)


@spool.command()
@click.argument("file", type=_FILE, metavar="FILE")
@click.argument("folder", type=_FOLDER, metavar="DIR")
@common_options
def unpack(common: Common, file: Path, folder: Path) -> None:
    """Add the jobs and answers of a packed spool to the spool DIR, which is made if it is missing."""
    from kernelwright.pool import unpack as unpack_spool

    _tell(common, "added", unpack_spool(file, folder), folder)


def _opened(folder: Path) -> SpoolFolder:
    from kernelwright.pool import SpoolFolder

    return SpoolFolder(folder)


def _tell(common: Common, done: str, counts: Any, where: Path) -> None:
    said = ", ".join(f"{count} {name if count != 1 else name[:-1]}" for name, count in counts._asdict().items())
    common.show({**counts._asdict(), "path": str(where)}, f"{done} {said}: {where}")
