"""Options, settings, store and output, shared by all commands."""

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
        """All settings merged, and the other values of ``--set``: constants in problem files, such as sizes.

        Raises:
            UsageError: as :meth:`settings`, or an override is neither a setting nor ``NAME=VALUE``.
        """
        from kernelwright.config import NAMES, Settings
        from kernelwright.datasets import parse_sizes

        others = [text for text in self._overrides if not _is_of_a_setting(text, NAMES.find)]
        own = [text for text in self._overrides if text not in others]
        settings = Settings.load({"store": self._store, **flags}, self._config_file, overrides=own)
        return _without_missing_suites(settings), parse_sizes(",".join(others)) if others else {}

    def open_store(self, settings: Settings, *, readonly: bool = False) -> Store:
        """Open the store of these settings. An empty store is created if none exists."""
        from kernelwright.store import Store

        return Store.open(settings.store, readonly=readonly and settings.store.exists())

    def show(self, data: Any, *renderables: RenderableType) -> None:
        """Print the result: with ``--json``, ``data`` as one JSON object; otherwise the renderables."""
        if self.as_json:
            from kernelwright.records.base import plain

            click.echo(json.dumps(plain(data), allow_nan=False))
            return
        console = stdout_console()
        for renderable in renderables:
            console.print(renderable, soft_wrap=isinstance(renderable, str), highlight=False)

    @property
    def store_flag(self) -> str:
        """`` --store PATH`` if it was given, else empty. Suggested commands end with it."""
        return f" --store {self._store}" if self._store else ""


def _without_missing_suites(settings: Settings) -> Settings:
    """The settings without missing suite folders, each of which is reported. Folders named by a flag are kept.

    A variable or a settings file names folders for all commands, and most commands do not need them.
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
    """Whether an override names a setting. A malformed override counts too: loading the settings raises for it."""
    name, equals, _ = text.partition("=")
    return not equals or find(name.strip().replace("-", "_")) is not None


def common_options(command: Command) -> Command:
    """Add ``--json``, ``--config``, ``--store`` and ``--set`` to a command, passed to it as ``common: Common``."""

    @click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON object on standard output.")
    @click.option(
        "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="Settings from a TOML file."
    )
    @click.option("--store", type=click.Path(path_type=Path), metavar="FILE", help="The database file.")
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
    help="Share of the work that own kernels must do: strict: nearly all; some: a part; any: none. Default: any for "
    "your own modules and files, some for suites.",
)


pool_option = click.option(
    "--pool",
    metavar="POOL",
    help="Where candidates are judged: local, ray[:ADDRESS[#RESOURCE]], or spool:DIR.",
)


def budget_options(command: Command) -> Command:
    """Add the budgets of a run to the options of a command."""
    for option in (
        click.option(
            "--max-device-seconds",
            type=click.FloatRange(min=0, min_open=True),
            help="Limit of the referee's time, in seconds.",
        ),
        click.option("--max-tokens", type=click.IntRange(min=1), help="Limit of the models' tokens, in and out."),
        click.option(
            "--max-cost-usd",
            type=click.FloatRange(min=0, min_open=True),
            help="Limit of what the models may cost, in US dollars.",
        ),
        click.option("--max-minutes", type=click.FloatRange(min=0, min_open=True), help="Time limit, in minutes."),
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
    """Print one line on standard error."""
    click.echo(text, err=True)
