"""The one exception root.

What a candidate kernel does wrong is a status of a :class:`~kernelwright.records.Verdict`, never an exception.
Exceptions are for the user (bad input, a missing tool) and for us (a broken machine, a bug). Each carries its data,
survives pickling, and says what to do next.
"""

from __future__ import annotations

from typing import Any, ClassVar


class KernelwrightError(Exception):
    """Base of every error that kernelwright raises on purpose.

    Attributes:
        message: what happened.
        hint: what the reader can do about it; may be empty.
        data: machine-readable particulars.
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
    """The user asked for something that cannot be: an unknown problem, a bad option, a malformed file."""

    exit_code = 2


class MissingToolError(KernelwrightError):
    """The environment lacks something that the job needs; the hint says what to install."""

    exit_code = 3


class MachineError(KernelwrightError):
    """A fault of ours or of the machine while judging: nothing is recorded, the job may be run again."""

    exit_code = 3


class SandboxError(MachineError):
    """The sandbox could not be set up, or its self-test found a hole. Nothing untrusted was run."""


class InvalidReferenceError(KernelwrightError):
    """The problem's reference cannot be used; ``data`` holds ``problem`` and, where known, ``line`` at fault."""

    exit_code = 1


class StoreError(KernelwrightError):
    """The database is locked, foreign, damaged or full; what was already written is safe."""

    exit_code = 3


class BudgetReached(KernelwrightError):
    """A budget (cost, minutes, device seconds) is used up; the run can be resumed with a larger one."""

    exit_code = 4
