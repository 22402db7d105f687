"""A seat answers one job at a time. The seat of this process keeps a referee and its latest sessions."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from kernelwright.config import Settings
from kernelwright.pool._jobs import Answer, Card, Fault, Job, method_of, version, with_method
from kernelwright.pool._sessions import OpenReferee, Sessions, open_local_referee
from kernelwright.records import Backend

T = TypeVar("T")
LANGUAGES: tuple[Backend, ...] = ("cpp", "triton", "cuda")


class SeatLost(Exception):
    """A seat died or cannot be reached. Whether it did its job is unknown."""


class Seat(Protocol):
    """Answers jobs, one at a time. All methods are called in one thread."""

    @property
    def name(self) -> str:
        """The name of the seat, for people."""
        ...

    def open(self) -> Card:
        """Start the seat.

        Raises:
            SeatLost: it cannot be reached.
            KernelwrightError: it cannot judge.
        """
        ...

    def answer(self, job: Job, on_stage: Callable[[str], None], soon: Sequence[Job] = ()) -> Answer:
        """Do a job.

        Args:
            on_stage: called with each stage, if the seat can tell.
            soon: jobs on the same problem that will probably follow. Their candidates may be built meanwhile.

        Raises:
            SeatLost: the seat is gone.
        """
        ...

    def close(self) -> None:
        """End the seat and free its memory."""
        ...


class Roster(Protocol):
    """Says which seats there should be. It may change at any time."""

    kind: str

    def names(self) -> Sequence[str]:
        """Names of the seats that can be had now."""
        ...

    def seat(self, name: str) -> Seat:
        """A new seat of that name."""
        ...

    def close(self) -> None:
        """Let all seats go."""
        ...


class OwnSeat:
    """A seat in this process. A sandbox's processes die with the thread that started them, so use one thread.

    Args:
        settings: where builds are cached. A job brings the settings of its method.
        open_referee: makes the referee for settings.
        name: how answers name this seat.
        most_open: number of sessions that stay open.
    """

    def __init__(
        self,
        settings: Settings,
        open_referee: OpenReferee = open_local_referee,
        *,
        name: str = "",
        most_open: int = 2,
    ) -> None:
        self._settings = settings
        self._open_referee = open_referee
        self._most_open = most_open
        self._method: dict[str, Any] = {}  # of the sessions
        self._served: Settings | None = None  # the settings that were asked for last
        self._asked: tuple[Mapping[str, Any] | None, Settings] = None, settings  # by the last job
        self._sessions: Sessions | None = None
        self._archive: tuple[Any, ...] = ()
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"

    def open(self) -> Card:
        """See :class:`Seat`."""
        referee = self._serving(self._settings).referee()
        return Card(
            seat=self.name,
            version=version(),
            environments={backend: referee.environment_for(backend) for backend in LANGUAGES},
        )

    def answer(
        self, job: Job, on_stage: Callable[[str], None] = lambda stage: None, soon: Sequence[Job] = ()
    ) -> Answer:
        """Do a job; an error becomes a fault of the answer."""
        started = time.monotonic()
        answer = Answer(job=job.id, version=version(), seat=self.name)
        try:
            done = self._done(job, on_stage, soon)
        except Exception as error:  # noqa: BLE001 - it is raised again where the job was asked
            done = {"fault": Fault.of(error)}
            self._forget(job)
        return answer.model_copy(update={**done, "seconds": time.monotonic() - started})

    def close(self) -> None:
        """See :class:`Seat`. The next use opens the referee again."""
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            sessions.close()

    def _done(self, job: Job, on_stage: Callable[[str], None], soon: Sequence[Job]) -> dict[str, Any]:
        self._archive = job.archive
        if job.settings != self._asked[0]:
            self._asked = job.settings, with_method(self._settings, job.settings)
        settings = self._asked[1]
        session = self._serving(settings).session(job.problem, job.backend, on_stage=on_stage)
        for candidate in (job.candidate, *(one.candidate for one in soon)) if soon else ():
            if session.builds_ahead(candidate.backend):
                session.build_ahead(candidate)
        return job.answered_in(session)

    def _serving(self, settings: Settings) -> Sessions:
        """The sessions for some settings. Another method needs another referee."""
        if settings is self._served and self._sessions is not None:
            return self._sessions
        method, self._served = method_of(settings), settings
        if self._method != method:
            self.close()
        if self._sessions is None:
            self._sessions = Sessions(
                settings,
                most=self._most_open,
                open_referee=self._open_referee,
                archive_of=lambda problem: self._archive,
            )
            self._method = method
        return self._sessions

    def _forget(self, job: Job) -> None:
        """Close the session in which a job failed, so that its next try gets a new one."""
        if self._sessions is not None:
            self._sessions.forget(job.problem.id)
