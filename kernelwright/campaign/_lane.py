"""The single place where a run's referee works: one judgement at a time, and few sessions open to bound the memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from kernelwright.campaign._sessions import Sessions
from kernelwright.config import Settings
from kernelwright.evaluator import RefereeLike, Session
from kernelwright.records import Backend, InputGenerator, Problem

T = TypeVar("T")
_COUNTED = ("judge", "as_kernelbench")


class LaneSession(Session, Protocol):
    """A session that a lane lends. Its methods run in the thread where the referee works."""

    def close(self) -> None:
        """Close the session if it is open. The next use opens it again."""
        ...


class Lane:
    """The only user of a run's referee.

    Args:
        referee: judges candidates. Its maker closes it.
        own_thread: run the work in a thread of its own, for callers in several threads; else in the caller's thread.
        most_open: number of sessions that stay open.
        archive_of: a problem's input generators, which candidates are checked on besides the fixed distributions.
    """

    def __init__(
        self,
        settings: Settings,
        referee: RefereeLike,
        *,
        own_thread: bool,
        most_open: int = 2,
        archive_of: Callable[[Problem], Sequence[InputGenerator]] = lambda problem: (),
    ) -> None:
        self._referee = referee
        self._thread = ThreadPoolExecutor(1, "referee") if own_thread else None
        self._sessions = Sessions(
            settings, most=most_open, open_referee=lambda _: nullcontext(referee), archive_of=archive_of
        )

    def session(self, problem: Problem, backend: Backend, on_stage: Callable[[str], None]) -> LaneSession:
        """A session on a problem. Its first use opens it."""
        return cast(LaneSession, _Lent(self, problem, backend, on_stage))

    def close(self) -> None:
        """Close all sessions, after the work in flight."""
        self.do(self._sessions.close)
        if self._thread is not None:
            self._thread.shutdown()

    def abort(self) -> None:
        """End what the referee is doing now. Threads that wait for it get an error."""
        close = getattr(self._referee, "close", None)
        if self._thread is not None and close is not None:
            close()

    def do(self, work: Callable[[], T]) -> T:
        """Call ``work`` in the thread where the referee works; returns its result."""
        return work() if self._thread is None else self._thread.submit(work).result()

    def opened(self, problem: Problem, backend: Backend, on_stage: Callable[[str], None], judges: int) -> Session:
        """The session on a problem, opened if needed; ``judges``: judgements to count. Call this in the lane."""
        return self._sessions.session(problem, backend, judges=judges, on_stage=on_stage)

    def forget(self, problem: Problem) -> None:
        """Close the session on a problem. Call it in the lane."""
        self._sessions.forget(problem.id)


class _Lent:
    """A :class:`LaneSession`."""

    def __init__(self, lane: Lane, problem: Problem, backend: Backend, on_stage: Callable[[str], None]) -> None:
        self._lane = lane
        self._given = problem, backend, on_stage

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            session = self._lane.opened(*self._given, int(name in _COUNTED))
            return getattr(session, name)(*arguments, **options)

        return lambda *arguments, **options: self._lane.do(partial(call, *arguments, **options))

    def close(self) -> None:
        """See :class:`LaneSession`."""
        self._lane.do(lambda: self._lane.forget(self._given[0]))
