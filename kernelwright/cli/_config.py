"""``kernelwright config``."""

from __future__ import annotations

import click

from kernelwright.cli._common import Common, common_options
from kernelwright.cli._tables import table


@click.group()
def config() -> None:
    """Show the settings and where each came from."""


@config.command()
@common_options
def show(common: Common) -> None:
    """Show every setting with its value and its origin: flag, environment variable, file or default."""
    from rich.markup import escape

    from kernelwright.config import NAMES

    described = common.settings().describe()
    made = table("setting", "value", "origin", "meaning")
    for name, entry in described.items():
        meaning = NAMES[name].description
        made.add_row(name, escape(_text(entry.value)), escape(entry.origin), meaning)
    common.show({name: {"value": entry.value, "origin": entry.origin} for name, entry in described.items()}, made)


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(entry) for entry in value) or "none"
    return "none" if value is None else str(value)
