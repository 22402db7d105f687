"""The root group: commands load on first use, and every error ends as a message, a hint and an exit code."""

from __future__ import annotations

import difflib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import click

from kernelwright import __version__
from kernelwright.errors import InvalidReferenceError, KernelwrightError

EXIT_BUG = 1
EXIT_INTERRUPTED = 130


class CommandHome(NamedTuple):
    """The module and function of a command, and its line in ``--help``. Help therefore imports no command."""

    home: str
    help: str


COMMANDS = {
    "bench": CommandHome("_bench:bench", "KernelBench-style evaluation: write and judge samples, report the metrics."),
    "compare": CommandHome("_compare:compare", "Compare two runs, and say whether they differ by more than noise."),
    "config": CommandHome("_config:config", "Show the settings and where each came from."),
    "doctor": CommandHome("_doctor:doctor", "Say what this machine can do, and what is missing."),
    "evaluate": CommandHome("_evaluate:evaluate", "Judge one candidate file."),
    "kernels": CommandHome("_kernels:kernels", "List, show, compare, export and verify the best kernels."),
    "mcp": CommandHome("_mcp:mcp", "Serve the referee to agents: an MCP server on standard input and output."),
    "moves": CommandHome("_moves:moves", "List measured changes of kernels, with their gains and problems."),
    "optimize": CommandHome("_optimize:optimize", "Write, prove and time kernels for problems."),
    "problems": CommandHome("_problems:problems", "List, show, check and capture problems."),
    "prompts": CommandHome("_prompts:prompts", "Show the prompts for language models."),
    "recipes": CommandHome("_recipes:recipes", "List and show search recipes."),
    "resume": CommandHome("_optimize:resume", "Continue a run that was stopped."),
    "rl": CommandHome("_rl:rl", "Reinforcement learning: rewards, data sets, training, a reward server."),
    "runs": CommandHome("_runs:runs", "List, show, record, pause and cancel runs."),
    "serve": CommandHome("_serve:serve", "Serve the leaderboard as a web site, with the evidence behind every number."),
    "spool": CommandHome("_spool:spool", "Show a spool, and carry it between machines as one file."),
    "store": CommandHome("_store:store", "Check, back up, merge, prune and vacuum the database."),
    "submissions": CommandHome("_submissions:submissions", "Judge, list, show and prune submitted kernels."),
    "tokens": CommandHome("_tokens:tokens", "Create, list and revoke access tokens of the leaderboard."),
    "tune": CommandHome("_tune:tune", "Search for the best values of a candidate's knobs."),
    "version": CommandHome("_version:version", "Print the version."),
    "worker": CommandHome("_spool:worker", "Judge the jobs of a spool on this machine."),
}


class Root(click.Group):
    """The root group."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name. Its module is imported on first use."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].home.partition(":")
        command: click.Command = getattr(importlib.import_module(f"kernelwright.cli.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as Click does. For an unknown command, suggest similar names."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = difflib.get_close_matches(args[0], COMMANDS, n=2)
            meant = f" Did you mean {' or '.join(near)}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].help) for name in self.list_commands(ctx)])

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run the command line and exit with its documented exit code."""
        words = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        sys.exit(_run(lambda: super(Root, self).main(words, prog_name or "kernelwright", **extra), words))


def _run(work: Any, words: Sequence[str]) -> int:
    """Call ``work``. Turn any exception into a message and an exit code."""
    as_json = "--json" in words
    try:
        code = work()
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        return _click_error(error, as_json)
    except (click.exceptions.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except KernelwrightError as error:
        return _our_error(error, as_json)
    except BrokenPipeError:
        # The reader of our output has gone (``| head``); keep Python's own shutdown from complaining.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 - the process boundary: a bug of ours, reported with its traceback
        return _bug(error, as_json)
    return code if isinstance(code, int) else 0


def _click_error(error: click.ClickException, as_json: bool) -> int:
    error.show()
    if as_json:
        print_error_json("UsageError", error.format_message(), "", error.exit_code)
    return error.exit_code


def _our_error(error: KernelwrightError, as_json: bool) -> int:
    from kernelwright.config import debug_enabled

    if debug_enabled():
        traceback.print_exception(error)
    prefix = "INVALID_REFERENCE: " if isinstance(error, InvalidReferenceError) else ""
    click.echo(f"error: {prefix}{error.message}", err=True)
    if error.hint:
        click.echo(f"hint: {error.hint}", err=True)
    if as_json:
        print_error_json(type(error).__name__, error.message, error.hint, error.exit_code, line=error.data.get("line"))
    return error.exit_code


def _bug(error: Exception, as_json: bool) -> int:
    traceback.print_exception(error)
    hint = "this is a bug of kernelwright; please report it with the lines above"
    click.echo(f"error: {type(error).__name__}: {error}\nhint: {hint}", err=True)
    if as_json:
        print_error_json(type(error).__name__, str(error), hint, EXIT_BUG)
    return EXIT_BUG


def print_error_json(kind: str, message: str, hint: str, exit_code: int, line: int | None = None) -> None:
    """Print the one JSON object of a failed command. ``line`` is the faulty line of a problem file, if known."""
    error: dict[str, Any] = {"type": kind, "message": message, "hint": hint, "exit_code": exit_code}
    if line is not None:
        error["line"] = line
    click.echo(json.dumps({"error": error}))


@click.group("kernelwright", cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """From a PyTorch module to the fastest kernel that can be proved correct.

    Results go to standard output, progress to standard error. Every command takes --json.
    """


def main() -> NoReturn:
    """The console script."""
    cli.main()
