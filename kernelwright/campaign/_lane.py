"""The way of a run's jobs to its referee or its pool.

A run's own referee works in a single place: one judgement at a time, and few sessions open to bound the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from kernelwright.agents.step_state import Judged
from kernelwright.config import Settings
from kernelwright.evaluator import Check, RefereeLike, Session
from kernelwright.pool import Answer, Depth, Job, Pool, Sessions, judged_unless, method_of, version
from kernelwright.records import Backend, Candidate, Evaluation, InputGenerator, Problem

T = TypeVar("T")


class LaneSession(Session, Protocol):
    """A session that a lane lends. Its methods run in the thread where the referee works, or in the pool."""

    judges_ahead: bool  # whether several candidates can be judged at the same time

    def judge_sample(self, candidate: Candidate, *, control: bool = False) -> Evaluation:
        """Judge one candidate, and add KernelBench's own verdict."""
        ...

    def judge_unless(self, known: frozenset[str] | None, candidate: Candidate, depth: Check | None = None) -> Judged:
        """Judge one candidate, unless the fingerprint of its machine code is known. None: it is not asked for."""
        ...

    def judge_ahead(self, known: frozenset[str] | None, candidate: Candidate, depth: Check | None = None) -> None:
        """Have a candidate judged for which :meth:`judge_unless` will be called later; returns at once."""
        ...

    def close(self) -> None:
        """Close the session if it is open. The next use opens it again."""
        ...


class Elsewhere(NamedTuple):
    """The pool that judges a run.

    Attributes:
        run: the id of the run.
        asked: the number of evaluations that the run has of a candidate of a problem, by their ids.
    """

    pool: Pool
    run: str
    asked: Callable[[str, str], int]


class Lane:
    """The only user of a run's referee, and of its pool.

    Args:
        referee: judges candidates. Its maker closes it.
        own_thread: run the work in a thread of its own, for callers in several threads; else in the caller's thread.
        most_open: number of sessions that stay open.
        archive_of: a problem's input generators, which candidates are checked on besides the fixed distributions.
        elsewhere: the pool that judges instead of the referee. The referee's sessions then only run tools.
    """

    def __init__(
        self,
        settings: Settings,
        referee: RefereeLike,
        *,
        own_thread: bool,
        most_open: int = 2,
        archive_of: Callable[[Problem], Sequence[InputGenerator]] = lambda problem: (),
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._referee = referee
        self._settings = settings
        self._archive_of = archive_of
        self._elsewhere = elsewhere
        self._thread = ThreadPoolExecutor(1, "referee") if own_thread else None
        self._sessions = Sessions(
            settings, most=most_open, open_referee=lambda _: nullcontext(referee), archive_of=archive_of
        )

    def session(self, problem: Problem, backend: Backend, on_stage: Callable[[str], None]) -> LaneSession:
        """A session on a problem. Its first use opens it."""
        if self._elsewhere is None:
            return cast(LaneSession, _Lent(self, problem, backend, on_stage))
        common = {"archive": tuple(self._archive_of(problem)), "settings": method_of(self._settings)}
        return cast(LaneSession, _Pooled(self, problem, backend, on_stage, self._elsewhere, common))

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

    judges_ahead = False

    def __init__(self, lane: Lane, problem: Problem, backend: Backend, on_stage: Callable[[str], None]) -> None:
        self._lane = lane
        self._given = problem, backend, on_stage

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            session = self._lane.opened(*self._given, int(name == "judge"))
            return getattr(session, name)(*arguments, **options)

        return lambda *arguments, **options: self._lane.do(partial(call, *arguments, **options))

    def judge_sample(self, candidate: Candidate, *, control: bool = False) -> Evaluation:
        """See :class:`LaneSession`."""

        def judged() -> Evaluation:
            session = self._lane.opened(*self._given, 1)
            return session.as_kernelbench(session.judge(candidate, control=control))

        return self._lane.do(judged)

    def judge_unless(self, known: frozenset[str] | None, candidate: Candidate, depth: Check | None = None) -> Judged:
        """See :class:`LaneSession`."""

        def judged() -> Judged:
            return Judged(*judged_unless(known, self._lane.opened(*self._given, 1), candidate, depth))

        return self._lane.do(judged)

    def close(self) -> None:
        """See :class:`LaneSession`."""
        self._lane.do(lambda: self._lane.forget(self._given[0]))


class _Pooled(_Lent):
    """A :class:`LaneSession` whose candidates are judged in a pool."""

    judges_ahead = True

    def __init__(
        self,
        lane: Lane,
        problem: Problem,
        backend: Backend,
        on_stage: Callable[[str], None],
        elsewhere: Elsewhere,
        common: Mapping[str, Any],
    ) -> None:
        """``common``: what all jobs of the session have in common besides the problem and its backend."""
        super().__init__(lane, problem, backend, on_stage)
        self._on_stage = on_stage
        self._elsewhere = elsewhere
        self._common = common

    def judge(self, candidate: Candidate, depth: Check | None = None, *, control: bool = False) -> Evaluation:
        """See :class:`Session`."""
        return self._evaluated(candidate, depth=Depth.of(depth), control=control)

    def judge_sample(self, candidate: Candidate, *, control: bool = False) -> Evaluation:
        """See :class:`LaneSession`."""
        return self._evaluated(candidate, control=control, kernelbench=True)

    def judge_unless(self, known: frozenset[str] | None, candidate: Candidate, depth: Check | None = None) -> Judged:
        """See :class:`LaneSession`."""
        answer = self._answer(self._job(candidate, depth=Depth.of(depth), known=_sorted(known)))
        return Judged(answer.evaluation, answer.machine_code)

    def judge_ahead(self, known: frozenset[str] | None, candidate: Candidate, depth: Check | None = None) -> None:
        """See :class:`LaneSession`."""
        self._elsewhere.pool.post(self._job(candidate, depth=Depth.of(depth), known=_sorted(known)))

    def compile_ahead(self, backend: Backend) -> None:
        """Do nothing: baselines are compiled where candidates are judged."""

    def builds_ahead(self, backend: Backend) -> bool:
        """Whether candidates are built here before they are judged elsewhere: never."""
        return False

    def _job(self, candidate: Candidate, **asked: Any) -> Job:
        (problem, backend, _), elsewhere = self._given, self._elsewhere
        return Job(
            version=version(),
            run=elsewhere.run,
            problem=problem,
            backend=backend,
            environment=elsewhere.pool.environment_for(candidate.backend).id,
            candidate=candidate,
            asking=elsewhere.asked(problem.id, candidate.sha256),
            **self._common,
            **asked,
        )

    def _evaluated(self, candidate: Candidate, **asked: Any) -> Evaluation:
        evaluation = self._answer(self._job(candidate, **asked)).evaluation
        assert evaluation is not None, "no fingerprint was known"
        return evaluation

    def _answer(self, job: Job) -> Answer:
        answer = self._elsewhere.pool.answer(job, self._on_stage)
        if answer.fault is not None:
            raise answer.fault.error(answer.seat)
        return answer


def _sorted(known: frozenset[str] | None) -> tuple[str, ...] | None:
    return None if known is None else tuple(sorted(known))
