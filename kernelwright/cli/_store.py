"""``kernelwright store``."""

from __future__ import annotations

from pathlib import Path

import click

from kernelwright.cli._common import Common, common_options

EXIT_DAMAGED = 1


@click.group()
def store() -> None:
    """Check and back up the database."""


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
@common_options
def backup(common: Common, path: Path) -> None:
    """Copy the database to PATH. Other processes may write to it meanwhile."""
    settings = common.settings()
    with common.open_store(settings, readonly=True) as opened:
        opened.backup(path)
    size_bytes = path.stat().st_size
    common.show({"backup": str(path), "size_bytes": size_bytes}, f"{path}: {size_bytes} bytes")
