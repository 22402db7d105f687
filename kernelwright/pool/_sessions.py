"""A referee and its sessions. Sessions are opened on first use, the latest few are kept, and old ones are renewed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from kernelwright.config import Settings
from kernelwright.errors import MachineError, SandboxError
from kernelwright.records import Backend, InputGenerator, Problem

if TYPE_CHECKING:
    from kernelwright.evaluator import RefereeLike, Session

T = TypeVar("T")
OpenReferee = Callable[[Settings], "AbstractContextManager[RefereeLike]"]

# Each verdict reveals a little about a session's secret data, and its workers do not live for ever.
JUDGEMENTS_OF_A_SESSION: Final = 512
LIFE_OF_A_SESSION_S: Final = 3600.0


def open_local_referee(settings: Settings) -> AbstractContextManager[RefereeLike]:
    """The referee on this machine."""
    from kernelwright.evaluator import Referee  # here, since it takes a second to load

    return Referee(settings)


def once_more(work: Callable[[], T], *, also: tuple[type[Exception], ...] = ()) -> T:
    """Do ``work``, and once more if the machine failed or one of ``also`` was raised; not if the sandbox is broken."""
    again: tuple[type[Exception], ...] = (MachineError, *also)
    try:
        return work()
    except SandboxError:
        raise
    except again:
        return work()


@dataclass
class _Open:
    """A session on one problem."""

    problem: Problem
    session: Session
    ending: ExitStack
    opened_at: float
    judged: int = 0


class Sessions:
    """Keeps a referee and its latest sessions. Use it in one thread: a sandbox's processes die with their starter.

    Args:
        most: number of sessions that stay open; a new one replaces the least recently used one.
        judgements: number of judgements before a session is renewed; None for the default.
        open_referee: makes the referee for settings.
        archive_of: a problem's input generators, which its candidates are checked on as well.
        clock: seconds from any starting point.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        most: int,
        judgements: int | None = None,
        open_referee: OpenReferee = open_local_referee,
        archive_of: Callable[[Problem], Sequence[InputGenerator]] = lambda problem: (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._most = most
        self._judgements = judgements
        self._open_referee = open_referee
        self._archive_of = archive_of
        self._clock = clock
        self._ending = ExitStack()
        self._referee: RefereeLike | None = None
        self._open: list[_Open] = []  # the most recently used one last

    @property
    def is_open(self) -> bool:
        """Whether there is a referee."""
        return self._referee is not None

    def referee(self) -> RefereeLike:
        """The referee; raises what opening it raises."""
        if self._referee is None:
            self._referee = self._ending.enter_context(self._open_referee(self._settings))
        return self._referee

    def session(
        self,
        problem: Problem,
        backend: Backend,
        *,
        judges: int = 1,
        on_stage: Callable[[str], None] | None = None,
    ) -> Session:
        """A session in which a candidate may be judged.

        Args:
            judges: number of judgements that will follow; they count towards the session's limit.
            on_stage: called with each stage while a new session is opened.

        Raises:
            InvalidReferenceError, UsageError, MachineError: as :meth:`kernelwright.evaluator.Referee.open`.
        """
        held = next((one for one in self._open if one.problem == problem), None)
        if held is None or not self._serves(held):
            self.forget(problem.id)
            while len(self._open) >= self._most:
                self._open.pop(0).ending.close()
            held = self._new(problem, backend, on_stage)
        else:
            self._open.remove(held)
        self._open.append(held)
        held.judged += judges
        return held.session

    def _serves(self, held: _Open) -> bool:
        most = self._judgements or JUDGEMENTS_OF_A_SESSION
        return held.judged < most and self._clock() - held.opened_at < LIFE_OF_A_SESSION_S

    def _new(self, problem: Problem, backend: Backend, on_stage: Callable[[str], None] | None) -> _Open:
        ending = ExitStack()
        opened = self.referee().open(
            problem,
            backend=backend,
            baselines=self._settings.baselines,
            on_stage=on_stage,
            archive=self._archive_of(problem),
        )
        return _Open(problem, ending.enter_context(opened), ending, self._clock())

    def forget(self, problem_id: str) -> None:
        """Close every session on a problem, including sessions on older versions of its file."""
        for held in [one for one in self._open if one.problem.id == problem_id]:
            self._open.remove(held)
            held.ending.close()

    def close(self) -> None:
        """End all sessions and the referee with its sandbox. The next use opens them again."""
        self._referee = None
        with self._ending:
            while self._open:
                self._ending.callback(self._open.pop().ending.close)
