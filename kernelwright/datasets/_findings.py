"""Weaknesses of a problem, as the lint reports them."""

from __future__ import annotations

from typing import Literal

from kernelwright.datasets._fit import smaller_sizes
from kernelwright.errors import KernelwrightError
from kernelwright.records import Problem, Record

TOO_LARGE = ("oom", "timeout")  # what a worker ends with where smaller sizes help


class LintFinding(Record):
    """One weakness of a problem.

    ``error``: the problem cannot be used, or an answer that computes nothing could pass. ``warning``: its results say
    less than they seem to. ``info``: worth knowing.
    """

    rule: str
    severity: Literal["error", "warning", "info"]
    message: str
    line: int | None = None

    @classmethod
    def of_error(cls, error: KernelwrightError, problem: Problem | None = None) -> LintFinding:
        """What an error that makes the reference unusable is called in a table.

        Args:
            problem: what was run when it was raised; where it is too large, the finding says how to make it smaller.
        """
        line, message = error.data.get("line"), error.message[:500]
        if problem is not None and error.data.get("kind") in TOO_LARGE:
            remedies = [hint for hint in (error.hint, smaller_sizes(problem)) if hint]
            message = f"{message}: {', or '.join(remedies)}"
        return cls(rule="invalid-reference", severity="error", message=printable(message), line=line)


def printable(text: str) -> str:
    """A text of others without what moves a terminal's cursor."""
    return "".join(character if character.isprintable() else " " for character in text)
