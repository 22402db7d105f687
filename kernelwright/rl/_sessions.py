"""The referee and its sessions: opened when they are first wanted, the latest few kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kernelwright.config import Settings
from kernelwright.records import Backend, InputGenerator, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelwright.campaign import RefereeLike, Session

    OpenReferee = Callable[[Settings], AbstractContextManager[RefereeLike]]

# A session has secret data of its own, about which each verdict says a little; and its workers do not live for ever.
JUDGEMENTS_OF_A_SESSION: Final = 512
LIFE_OF_A_SESSION_S: Final = 3600.0


def open_local_referee(settings: Settings) -> AbstractContextManager[RefereeLike]:
    """The referee on this machine."""
    from kernelwright.evaluator import Referee  # here, since it takes a second to load

    return Referee(settings)


@dataclass
class _Open:
    """A session on one problem for one backend."""

    problem: Problem
    backend: Backend
    session: Session
    ending: ExitStack
    opened_at: float
    judged: int = 0


class Sessions:
    """Keeps the latest ``most`` sessions. Belongs to one thread: a sandbox's processes die with the one that began it.

    Args:
        archive_of: knows the generators of inputs that a problem's candidates are checked on as well.
        clock: seconds since whenever.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        most: int,
        open_referee: OpenReferee = open_local_referee,
        archive_of: Callable[[Problem], Sequence[InputGenerator]] = lambda problem: (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._most = most
        self._open_referee = open_referee
        self._archive_of = archive_of
        self._clock = clock
        self._ending = ExitStack()
        self._referee: RefereeLike | None = None
        self._open: list[_Open] = []  # the one that was used last stands last

    def referee(self) -> RefereeLike:
        """The referee; raises what opening it raises."""
        if self._referee is None:
            self._referee = self._ending.enter_context(self._open_referee(self._settings))
        return self._referee

    def session(self, problem: Problem, backend: Backend, *, judges: int = 1) -> Session:
        """A session in which a candidate may be judged; ``judges``: how many will be, which is counted.

        Raises:
            InvalidReferenceError, UsageError, MachineError: as :meth:`kernelwright.evaluator.Referee.open`.
        """
        held = next((one for one in self._open if (one.problem, one.backend) == (problem, backend)), None)
        if held is not None:
            self._open.remove(held)
            if not self._serves(held):
                held.ending.close()
                held = None
        if held is None:
            while len(self._open) >= self._most:
                self._open.pop(0).ending.close()
            held = self._new(problem, backend)
        self._open.append(held)
        held.judged += judges
        return held.session

    def _serves(self, held: _Open) -> bool:
        return held.judged < JUDGEMENTS_OF_A_SESSION and self._clock() - held.opened_at < LIFE_OF_A_SESSION_S

    def _new(self, problem: Problem, backend: Backend) -> _Open:
        ending = ExitStack()
        opened = self.referee().open(
            problem, backend=backend, baselines=self._settings.baselines, archive=self._archive_of(problem)
        )
        return _Open(problem, backend, ending.enter_context(opened), ending, self._clock())

    def close(self) -> None:
        """End all sessions and the referee with its sandbox; what is asked for next opens them anew."""
        self._referee = None
        with self._ending:
            while self._open:
                self._ending.callback(self._open.pop().ending.close)
