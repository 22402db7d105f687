"""All exceptions, with one base class.

A fault of a candidate kernel is a status of a :class:`~kernelwright.records.Verdict`, never an exception. Exceptions
are for the user (bad input, a missing tool) and for developers (a broken machine, a bug). Each carries its data, can
be pickled, and says what to do next.
"""

from __future__ import annotations

from typing import Any, ClassVar


class KernelwrightError(Exception):
    """Base of every error that kernelwright raises on purpose.

    Attributes:
        message: what happened.
        hint: what the reader can do about it; may be empty.
        data: machine-readable details.
        exit_code: the command line's exit code for this error (see the command-line contract).
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "", **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.data = data

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.data)


def _rebuild(cls: type[KernelwrightError], message: str, hint: str, data: dict[str, Any]) -> KernelwrightError:
    return cls(message, hint=hint, **data)


class UsageError(KernelwrightError):
    """The user requested something impossible: an unknown problem, a bad option, a malformed file."""

    exit_code = 2


class MissingToolError(KernelwrightError):
    """The environment lacks a tool that the job needs. The hint says what to install."""

    exit_code = 3


class MachineError(KernelwrightError):
    """A fault of kernelwright or of the machine during a job. Nothing is recorded, and the job may be run again."""

    exit_code = 3


class SandboxError(MachineError):
    """The sandbox could not be set up, or its self-test found a hole. Nothing untrusted was run."""


class InvalidReferenceError(KernelwrightError):
    """The problem's reference cannot be used. ``data`` holds ``problem`` and, if known, the ``line`` at fault."""

    exit_code = 1


class StoreError(KernelwrightError):
    """The database is locked, foreign, damaged or full. Earlier writes are safe."""

    exit_code = 3


class NotYet(KernelwrightError):
    """A reply or a verdict is still to come. ``data["path"]`` is a verdict's file, or a reply's without its ending."""


class BudgetReached(KernelwrightError):
    """A budget (cost, minutes, device seconds) is used up. The run can be resumed with a larger one."""

    exit_code = 4
