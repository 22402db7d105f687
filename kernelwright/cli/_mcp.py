"""``kernelwright mcp``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from kernelwright.cli._common import Common, common_options, say
from kernelwright.errors import UsageError

EXIT_INTERRUPTED = 130


@click.command()
@click.option("--sandbox", metavar="S", help="bwrap, docker, process or none.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads while timing.")
@click.option(
    "--suite-dir", "suite_dirs", multiple=True, type=click.Path(path_type=Path), help="Folder of more suites."
)
@common_options
def mcp(common: Common, **flags: Any) -> int:
    """Serve the referee over MCP. A client starts this command and talks to it over standard input and output.

    The command ends when standard input is closed. Standard output carries the protocol, so --json is refused.
    """
    if common.as_json:
        raise UsageError("mcp speaks a protocol of its own on standard output", hint="leave --json out")
    settings = common.settings(**flags)
    from kernelwright.mcp import serve

    if sys.stdin.isatty():
        say("waiting for an MCP client on standard input; Ctrl-C ends")
    return 0 if serve(settings) else EXIT_INTERRUPTED
