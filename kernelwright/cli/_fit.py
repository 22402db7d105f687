"""The option ``--fit``: problems in sizes that a small machine can run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from kernelwright.cli._common import say

if TYPE_CHECKING:
    from kernelwright.config import Settings
    from kernelwright.records import Problem

_TELL_EACH_S = 10.0  # between progress lines, while there is no other output

fit_option = click.option("--fit", is_flag=True, help="Halve sizes of problems that are too large for a small machine.")


def fitted_problems(problems: Sequence[Problem], settings: Settings) -> list[Problem]:
    """The problems in sizes that a small machine can run. A problem that cannot shrink is kept and reported."""
    from kernelwright.campaign.attempts import fault_of
    from kernelwright.datasets import fitted
    from kernelwright.sandbox import Limits, open_sandbox

    if not problems:
        return []

    limits = Limits(memory_bytes=settings.memory_bytes, wall_s=settings.capture_timeout_s)
    made: list[Problem] = []
    told = time.monotonic()
    with open_sandbox(settings.sandbox) as opened:
        for problem in problems:
            if time.monotonic() - told > _TELL_EACH_S:
                say(f"  {len(made)} of {len(problems)} problems are in sizes for this machine")
                told = time.monotonic()
            try:
                fit = fitted(problem, lambda entry, payload: opened.call(entry, payload, limits=limits))
            except Exception as error:  # one problem must not stop the others
                fault = fault_of(error)
                if fault is None:
                    raise
                say(f"  {problem.id} keeps its sizes: {fault.reason}")
                made.append(problem)
                continue
            if fit.reason:
                say(f"  {fit.problem.id} is still large: {fit.reason}")
            made.append(fit.problem)
    return made
