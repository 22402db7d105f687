"""A referee and its sessions: opened when they are first wanted, the latest few kept, and renewed in time."""

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

# A session has secret data of its own, about which each verdict says a little; and its workers do not live for ever.
JUDGEMENTS_OF_A_SESSION: Final = 512
LIFE_OF_A_SESSION_S: Final = 3600.0


def open_local_referee(settings: Settings) -> AbstractContextManager[RefereeLike]:
    """The referee on this machine."""
    from kernelwright.evaluator import Referee  # here, since it takes a second to load

    return Referee(settings)


def once_more(work: Callable[[], T], *, also: tuple[type[Exception], ...] = ()) -> T:
    """Do ``work`` again where the machine failed, or one of ``also`` was raised; never where the sandbox is broken."""
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
    """Keeps a referee and its latest sessions. Belongs to one thread: a sandbox's processes die with their starter.

    Args:
        most: sessions that stay open; the one that was used the longest time ago is closed for another one.
        judgements: in one session, before it is renewed; None for as many as are usual.
        open_referee: makes the referee for settings.
        archive_of: knows the generators of inputs that a problem's candidates are checked on as well.
        clock: seconds since whenever.
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
        self._open: list[_Open] = []  # the one that was used last stands last

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
            judges: how many judgements are to follow, which are counted.
            on_stage: told what a session that is opened now does.

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
        """Close the session on a problem, also one on an older version of its file."""
        for held in [one for one in self._open if one.problem.id == problem_id]:
            self._open.remove(held)
            held.ending.close()

    def close(self) -> None:
        """End all sessions and the referee with its sandbox; what is asked for next opens them anew."""
        self._referee = None
        with self._ending:
            while self._open:
                self._ending.callback(self._open.pop().ending.close)
