"""How the work on one problem may end. A fault of that problem becomes its row, and other problems continue."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kernelwright.agents.llm import Stopped as ModelStopped
from kernelwright.campaign._results import RunResult
from kernelwright.campaign.stopping import StopWatch
from kernelwright.errors import (
    BudgetReached,
    InvalidReferenceError,
    KernelwrightError,
    MachineError,
    MissingToolError,
    NotYet,
    SandboxError,
    StoreError,
)
from kernelwright.records import Problem, Status

if TYPE_CHECKING:
    from kernelwright.store import Store

_TRACEBACK = 8000  # characters of a traceback that are kept
_TRIES = 2  # tries if the machine fails
_OF_THE_RUN = (SandboxError, MissingToolError, StoreError)
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class Awaiting(Exception):
    """The problem can continue when replies or verdicts have arrived at ``places``."""

    def __init__(self, places: tuple[str, ...]) -> None:
        super().__init__(", ".join(places))
        self.places = places


class Stopped(Exception):
    """The run must stop; everything in flight was saved."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ProblemFault(NamedTuple):
    """Why the work on one problem ended without a verdict.

    Attributes:
        reason: the reason in words.
        invalid: the problem's reference cannot be used.
        retry: the machine failed, so another try may succeed.
        unforeseen: the traceback of an unexpected error of kernelwright, or empty.
    """

    reason: str
    invalid: bool = False
    retry: bool = False
    unforeseen: str = ""


def fault_of(error: Exception) -> ProblemFault | None:
    """The fault of a problem that an error means, or None for an error that concerns the whole run.

    Errors of the whole run are a missing sandbox or tool, the store's, and a full disk: every problem would fail.
    """
    if isinstance(error, _OF_THE_RUN) or (isinstance(error, OSError) and error.errno in _OF_THE_DISK):
        return None
    if isinstance(error, InvalidReferenceError):
        return ProblemFault(str(error), invalid=True)
    if isinstance(error, MachineError):
        return ProblemFault(str(error), retry=True)
    if isinstance(error, KernelwrightError):
        return ProblemFault(str(error))
    said = f"{type(error).__name__}: {error}".strip(": ")[:500]
    return ProblemFault(f"an error of kernelwright: {said}", unforeseen="".join(traceback.format_exception(error)))


def attempted(
    work: Callable[[], RunResult],
    *,
    failed: Callable[[ProblemFault], RunResult],
    told: Callable[[ProblemFault, str], None],
    watch: StopWatch,
) -> RunResult:
    """The row of one problem, even if its work fails. After a fault of the machine the work is tried once more.

    Args:
        failed: makes the row of a problem that ended with a fault.
        told: called with each fault and a message about it.

    Raises:
        Stopped: a stop was asked for, or a budget is used up.
        Awaiting: replies or verdicts are still to come.
        Exception: an error that concerns the whole run.
    """
    for left in reversed(range(_TRIES)):
        try:
            return work()
        except (Awaiting, Stopped):
            raise
        except NotYet as later:
            raise Awaiting((str(later.data["path"]),)) from None
        except ModelStopped as stopped:
            raise Stopped(stopped.message) from None
        except BudgetReached as reached:
            told(ProblemFault(reached.message), reached.message)
            raise Stopped("budget") from None
        except Exception as error:  # the boundary of one problem: its errors must not end the others
            fault = fault_of(error)
            if fault is None:
                raise
            if not fault.invalid and (reason := watch.reason()):  # work that is being ended fails because of that
                raise Stopped(reason) from None
            again = "; trying again" if fault.retry and left else ""
            told(fault, f"fault of the machine: {fault.reason}{again}" if fault.retry else fault.reason)
            if not again:
                return failed(fault)
    raise AssertionError("unreachable")


def note_fault(store: Store, run_id: str, problem: Problem, fault: ProblemFault) -> None:
    """Keep a fault of the machine or of kernelwright among the run's events."""
    if fault.retry:
        store.event(run_id, "machine-error", {"problem": problem.id, "error": fault.reason})
    elif fault.unforeseen:
        store.event(run_id, "problem-error", {"problem": problem.id, "traceback": fault.unforeseen[-_TRACEBACK:]})


def row_of_fault(problem: Problem, fault: ProblemFault, *, seconds: float) -> RunResult:
    """The row of a problem that ended without a verdict."""
    return RunResult(
        problem=problem.id,
        state="failed",
        status=Status.INVALID_REFERENCE if fault.invalid else None,
        reason=fault.reason,
        seconds=seconds,
        retry=fault.retry,
        unjudged=True,
    )
