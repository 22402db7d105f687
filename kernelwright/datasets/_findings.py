"""Weaknesses of a problem, as the lint reports them."""

from __future__ import annotations

from typing import Literal

from kernelwright.datasets._fit import smaller_sizes
from kernelwright.errors import KernelwrightError
from kernelwright.records import Problem, Record

TOO_SMALL = "too-small"  # the rule for problems that run too briefly to be timed well, on a CPU
TOO_LARGE = ("oom", "timeout")  # kinds of worker failure that smaller sizes may avoid


class LintFinding(Record):
    """One weakness of a problem.

    ``error``: the problem cannot be used, or an answer that computes nothing could pass. ``warning``: the problem's
    results mean less than they seem to. ``info``: worth knowing.
    """

    rule: str
    severity: Literal["error", "warning", "info"]
    message: str
    line: int | None = None

    @classmethod
    def of_error(cls, error: KernelwrightError, problem: Problem | None = None) -> LintFinding:
        """The finding for an error that makes the reference unusable.

        Args:
            problem: the problem that raised the error. If it is too large, the finding says how to make it smaller.
        """
        line, message = error.data.get("line"), error.message[:500]
        if problem is not None and error.data.get("kind") in TOO_LARGE:
            remedies = [hint for hint in (error.hint, smaller_sizes(problem)) if hint]
            message = f"{message}: {', or '.join(remedies)}"
        return cls(rule="invalid-reference", severity="error", message=printable(message), line=line)


def printable(text: str) -> str:
    """Replace characters of an untrusted text that could move a terminal's cursor."""
    return "".join(character if character.isprintable() else " " for character in text)
