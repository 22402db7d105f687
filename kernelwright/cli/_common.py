"""What every command shares: its options, its settings, its store, its output."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from kernelwright.config import Settings
    from kernelwright.records import KnobValue
    from kernelwright.store import Store

EXIT_OF_STATUS = {"paused": 4, "interrupted": 130, "cancelled": 130}

Command = TypeVar("Command", bound=Callable[..., Any])
WIDE = 200  # columns of a table that goes to a file or a pipe


class Common:
    """The shared options of one invocation."""

    def __init__(self, as_json: bool, config_file: Path | None, store: Path | None, overrides: tuple[str, ...]) -> None:
        self.as_json = as_json
        self._config_file = config_file
        self._store = store
        self._overrides = overrides

    def settings(self, **flags: Any) -> Settings:
        """All settings merged; raises UsageError."""
        from kernelwright.config import Settings

        loaded = Settings.load({"store": self._store, **flags}, self._config_file, overrides=self._overrides)
        return _without_missing_suites(loaded)

    def sized_settings(self, **flags: Any) -> tuple[Settings, dict[str, KnobValue]]:
        """All settings merged, and what ``--set`` sets besides: constants in the files of problems, such as sizes.

        Raises:
            UsageError: as :meth:`settings`, or what is set is neither a setting nor ``NAME=VALUE``.
        """
        from kernelwright.config import NAMES, Settings
        from kernelwright.datasets import parse_sizes

        others = [text for text in self._overrides if not _is_of_a_setting(text, NAMES.find)]
        own = [text for text in self._overrides if text not in others]
        settings = Settings.load({"store": self._store, **flags}, self._config_file, overrides=own)
        return _without_missing_suites(settings), parse_sizes(",".join(others)) if others else {}

    def open_store(self, settings: Settings, *, readonly: bool = False) -> Store:
        """The store of these settings; an empty one is made where there is none yet."""
        from kernelwright.store import Store

        return Store.open(settings.store, readonly=readonly and settings.store.exists())

    def show(self, data: Any, *renderables: RenderableType) -> None:
        """Print the result: ``data`` as one JSON object with ``--json``, else what is meant for people."""
        if self.as_json:
            from kernelwright.records.base import plain

            click.echo(json.dumps(plain(data), allow_nan=False))
            return
        console = stdout_console()
        for renderable in renderables:
            console.print(renderable, soft_wrap=isinstance(renderable, str), highlight=False)

    @property
    def store_flag(self) -> str:
        """``--store PATH`` where it was given, for commands that we suggest."""
        return f" --store {self._store}" if self._store else ""


def _without_missing_suites(settings: Settings) -> Settings:
    """Settings without folders of suites that are not there, which is said: unless a flag names them for this command.

    A variable or a file names them for all commands, and most need none of them.
    """
    origin = settings.origin("suite_dirs")
    there = tuple(folder for folder in settings.suite_dirs if folder.is_dir())
    if origin.startswith("flag") or there == settings.suite_dirs:
        return settings
    for folder in settings.suite_dirs:
        if folder not in there:
            say(f"left out: there is no suite folder {folder} ({origin.removeprefix('env ')} names it)")
    return settings.with_values(origin, suite_dirs=there)


def _is_of_a_setting(text: str, find: Callable[[str], str | None]) -> bool:
    """Whether an override names a setting. A malformed one counts as well: reading the settings refuses it."""
    name, equals, _ = text.partition("=")
    return not equals or find(name.strip().replace("-", "_")) is not None


def common_options(command: Command) -> Command:
    """Give a command ``--json``, ``--config``, ``--store`` and ``--set``; it gets a :class:`Common` as ``common``."""

    @click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON object on standard output.")
    @click.option(
        "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="Settings from a TOML file."
    )
    @click.option("--store", type=click.Path(path_type=Path), metavar="FILE", help="The database.")
    @click.option("--set", "overrides", multiple=True, metavar="NAME=VALUE", help="Change one setting (repeatable).")
    @functools.wraps(command)
    def wrapped(
        *args: Any, as_json: bool, config_file: Path | None, store: Path | None, overrides: tuple[str, ...], **rest: Any
    ) -> Any:
        return command(*args, common=Common(as_json, config_file, store, overrides), **rest)

    return wrapped  # type: ignore[return-value]


own_kernels_option = click.option(
    "--own-kernels",
    type=click.Choice(["any", "some", "strict"]),
    help="How much of the work is to be in own kernels. Default: any for your own modules and files, some for suites.",
)


def budget_options(command: Command) -> Command:
    """Give a command the budgets of a run."""
    for option in (
        click.option(
            "--max-device-seconds", type=click.FloatRange(min=0, min_open=True), help="Most time of the referee."
        ),
        click.option("--max-tokens", type=click.IntRange(min=1), help="Most tokens of models, in and out."),
        click.option("--max-cost-usd", type=click.FloatRange(min=0, min_open=True), help="Most that models may cost."),
        click.option("--max-minutes", type=click.FloatRange(min=0, min_open=True), help="Stop after this much time."),
    ):
        command = option(command)
    return command


def stdout_console() -> Console:
    """A rich console for results: as wide as the terminal, or wide enough for one line a row elsewhere."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)


def stderr_console() -> Console:
    """A rich console for progress and prose."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """One line of prose on standard error."""
    click.echo(text, err=True)
