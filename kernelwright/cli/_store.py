"""``kernelwright store``."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernelwright.cli._common import Common, common_options
from kernelwright.errors import UsageError

if TYPE_CHECKING:
    from kernelwright.store import MergeReport

EXIT_DAMAGED = 1
_AGE = re.compile(r"(\d{1,6})([hdw])")
_HOURS = {"h": 1, "d": 24, "w": 24 * 7}


@click.group()
def store() -> None:
    """Check, back up, merge, prune and vacuum the database."""


@store.command()
@common_options
def check(common: Common) -> int:
    """Verify the database: SQLite's own checks, references between rows, the hash of every blob."""
    settings = common.settings()
    with common.open_store(settings, readonly=True) as opened:
        report = opened.check()
    lines = [
        f"{settings.store}: {'sound' if report.ok else 'DAMAGED'}",
        *(f"  {fault}" for fault in report.damage),
        f"  {', '.join(f'{count} {name}' for name, count in report.counts.items())}",
    ]
    common.show({"store": str(settings.store), **report.model_dump(mode="json"), "ok": report.ok}, *lines)
    return 0 if report.ok else EXIT_DAMAGED


@store.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@common_options
def backup(common: Common, path: Path, force: bool) -> None:
    """Copy the database to PATH, and check the copy. Other processes may write to the database meanwhile."""
    settings = common.settings()
    with common.open_store(settings, readonly=True) as opened:
        opened.backup(path, replace=force)
    size_bytes = path.stat().st_size
    common.show({"backup": str(path), "size_bytes": size_bytes}, f"{path}: {size_bytes} bytes")


@store.command()
@click.argument("others", nargs=-1, required=True, metavar="OTHER...", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Say what would be added to the database; add nothing.")
@common_options
def merge(common: Common, others: tuple[Path, ...], dry_run: bool) -> None:
    """Bring everything from the databases OTHER into this one. They are not changed.

    What is known already is left as it is, so a merge may be repeated. If a row of OTHER differs from the row with the
    same id here, nothing is merged.
    """
    settings = common.settings()
    with common.open_store(settings, readonly=dry_run) as opened:
        reports = opened.merge(others, dry_run=dry_run)
    data = {"store": str(settings.store), "dry_run": dry_run, "merged": reports}
    common.show(data, *(_merged(report, dry_run) for report in reports))


def _merged(report: MergeReport, dry_run: bool) -> str:
    parts = [f"{count} {_words(table)}" for table, count in report.added.items() if count]
    if report.updated:
        parts.append(f"later states of {report.updated} runs and problems")
    return f"{report.other}: {'would add' if dry_run else 'added'} {', '.join(parts) or 'nothing'}"


def _words(table: str) -> str:
    return table.replace("_", " ").replace("llm ", "LLM ").replace("blobs", "texts")


@store.command()
@common_options
def vacuum(common: Common) -> None:
    """Rewrite the database without gaps, which gives space back. No run may be driven meanwhile."""
    settings = common.settings()
    with common.open_store(settings) as opened:
        before, after = opened.vacuum()
    data = {"store": str(settings.store), "bytes_before": before, "bytes_after": after}
    common.show(data, f"{settings.store}: {before} bytes before, {after} bytes after")


@store.command()
@click.option("--older-than", required=True, metavar="AGE", help="Only what is older: hours, days or weeks, as 30d.")
@click.option("--artifacts", is_flag=True, help="Texts of losing kernels' evaluations, such as compilers' messages.")
@click.option("--samples", is_flag=True, help="Raw timing samples of losing kernels; their intervals stay.")
@click.option("--calls", is_flag=True, help="Texts of prompts and replies; tokens and costs stay.")
@click.option("--runs", is_flag=True, help="Whole cancelled and failed runs.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@common_options
def prune(common: Common, older_than: str, dry_run: bool, **kinds: bool) -> None:
    """Remove old evidence that no result rests on. 'vacuum' then gives the space back.

    Nothing goes that belongs to a kernel that is or was on a board, won a run, was confirmed, withdrawn or judged a
    hack, or to a run that may go on.
    """
    what = sorted(name for name, wanted in kinds.items() if wanted)
    if not what:
        raise UsageError("what shall be pruned?", hint="one or more of --artifacts, --samples, --calls, --runs")
    settings = common.settings()
    before = _time_before(older_than)
    with common.open_store(settings, readonly=dry_run) as opened:
        report = opened.prune(before, what, dry_run=dry_run)  # type: ignore[arg-type]
    done = "would remove" if dry_run else "removed"
    parts = [f"{count} {name}" for name, count in report.removed.items() if count]
    lines = [
        f"{settings.store}: {done} {', '.join(parts) or 'nothing'} from before {before[:16]}Z",
        *([f"  {report.text_bytes} bytes of text"] if report.text_bytes else []),
        *(f"  kept {count} runs: {reason}" for reason, count in report.kept_runs.items()),
    ]
    common.show({"store": str(settings.store), "before": before, "dry_run": dry_run, **report.model_dump()}, *lines)


def _time_before(age: str) -> str:
    """The time that long ago, as the store writes times. Raises UsageError."""
    found = _AGE.fullmatch(age.strip())
    if found is None:
        raise UsageError(f"{age!r} is no age", hint="give hours, days or weeks: 12h, 30d, 8w")
    moment = datetime.now(UTC) - timedelta(hours=int(found[1]) * _HOURS[found[2]])
    return moment.isoformat(timespec="milliseconds")[:-6] + "Z"
