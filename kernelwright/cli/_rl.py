"""``kernelwright rl``. Its subcommands load on first use, because their imports are large."""

from __future__ import annotations

import importlib

import click

SUBCOMMANDS = {
    "export": "_rl_export:export",
    "rewards": "_rl_rewards:rewards",
    "serve": "_rl_serve:serve",
    "train": "_rl_train:train",
}


class _Lazy(click.Group):
    """A group that imports its commands on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every subcommand, sorted."""
        return sorted(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand's module."""
        if cmd_name not in SUBCOMMANDS:
            return None
        module, _, attribute = SUBCOMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(f"kernelwright.cli.{module}"), attribute)
        return command


@click.group(cls=_Lazy)
def rl() -> None:
    """Reinforcement learning: reward formulas, data sets from the store, training, a reward server for trainers."""
