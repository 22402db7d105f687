"""``kernelwright evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelwright.cli._common import Common, common_options, own_kernels_option, say
from kernelwright.cli._tables import verdict_lines, weak_sandbox
from kernelwright.errors import UsageError

if TYPE_CHECKING:
    from kernelwright.records import KnobValue

EXIT_NOT_PASSED = 1


@click.command()
@click.argument("candidate", type=click.Path(path_type=Path))
@click.option("--problem", "-p", required=True, metavar="P", help="The problem that the candidate solves.")
@click.option(
    "--backend",
    type=click.Choice(["cpp", "triton", "cuda"]),
    help="The candidate's language (default: the language of its kernels).",
)
@click.option("--variant", metavar="V", help="Time this shape variant: its number, or its constants (COLUMNS=1025).")
@click.option("--knob", "knobs", multiple=True, metavar="NAME=VALUE", help="Set a knob of the candidate (repeatable).")
@click.option("--control", is_flag=True, help="Judge the file as a control: it needs no kernels of its own.")
@click.option("--no-time", is_flag=True, help="Stop after the check.")
@click.option("--confirm", is_flag=True, help="Time in fresh processes, as for a published result.")
@click.option("--sandbox", metavar="S", help="bwrap, docker, process or none.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads while timing.")
@own_kernels_option
@click.option(
    "--allow-precision", multiple=True, metavar="NAME", help="Allow tf32, bfloat16 or float16 in float32 (repeatable)."
)
@click.option(
    "--suite-dir", "suite_dirs", multiple=True, type=click.Path(path_type=Path), help="Folder of more suites."
)
@common_options
def evaluate(
    common: Common,
    candidate: Path,
    problem: str,
    variant: str | None,
    knobs: tuple[str, ...],
    control: bool,
    no_time: bool,
    confirm: bool,
    **flags: Any,
) -> int:
    """Build, check and time one candidate file in the sandbox. Exit code 1 if it does not pass."""
    from kernelwright.campaign import evaluate as judge
    from kernelwright.datasets import find_problem, with_sizes

    settings, sizes = common.sized_settings(**flags)
    (found,) = with_sizes([find_problem(problem, settings.suite_dirs)], sizes)
    with common.open_store(settings) as store:
        evaluation = judge(
            candidate,
            found,
            settings=settings,
            knobs=dict(parse_knob(text) for text in knobs),
            control=control,
            time=not no_time,
            confirm=confirm,
            variant=variant,
            store=store,
            on_stage=lambda stage: say(f"  {stage}"),
        )
    verdict = evaluation.verdict
    lines = verdict_lines(verdict)
    if warning := weak_sandbox(verdict.sandbox):
        lines.append(warning)
    if common.as_json:
        common.show(verdict)
    else:
        for line in lines:
            click.echo(line)
    return 0 if verdict.passed else EXIT_NOT_PASSED


def parse_knob(text: str) -> tuple[str, KnobValue]:
    """``NAME=VALUE`` as a name and an int, float, bool or text.

    Raises:
        UsageError: the text is not ``NAME=VALUE``.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(f"--knob wants NAME=VALUE, not {text!r}", hint="for example --knob BLOCK=64")
    if value in {"true", "True", "false", "False"}:
        return name, value.lower() == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value
