"""Where a run's referee works: one judgement at a time, whoever asks, and no more sessions open than memory allows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeVar

from kernelwright.campaign._referee import RefereeLike, Session
from kernelwright.records import Backend, BuiltCode, Candidate, Evaluation, InputGenerator, Problem

T = TypeVar("T")


class _Open(NamedTuple):
    session: Session
    closing: ExitStack


class Lane:
    """The one place from which a referee is used.

    Args:
        referee: judges.
        own_thread: work in a thread of its own, for callers in several threads; else in the caller's.
        most_open: sessions that stay open; the one that was used the longest time ago is closed for another one, and
            opened again when it is wanted.
        archive_of: generators of inputs that a problem's candidates are checked on besides the fixed distributions.
    """

    def __init__(
        self,
        referee: RefereeLike,
        *,
        own_thread: bool,
        most_open: int = 2,
        archive_of: Callable[[Problem], Sequence[InputGenerator]] = lambda problem: (),
    ) -> None:
        self._referee = referee
        self._most_open = most_open
        self._archive_of = archive_of
        self._thread = ThreadPoolExecutor(1, "referee") if own_thread else None
        self._sessions: OrderedDict[str, _Open] = OrderedDict()

    def session(
        self, problem: Problem, backend: Backend, baselines: Sequence[str], on_stage: Callable[[str], None]
    ) -> LaneSession:
        """A session on a problem, which is opened when it is first used."""

        def use(work: Callable[[Session], T]) -> T:
            return self._do(lambda: work(self._opened(problem, backend, baselines, on_stage)))

        return LaneSession(use, lambda: self._do(lambda: self._close(problem.id)))

    def close(self) -> None:
        """Close all sessions, after the work in flight."""
        self._do(self._close_all)
        if self._thread is not None:
            self._thread.shutdown()

    def abort(self) -> None:
        """End what the referee is doing now; whoever waits for it gets an error."""
        close = getattr(self._referee, "close", None)
        if self._thread is not None and close is not None:
            close()

    def _do(self, work: Callable[[], T]) -> T:
        return work() if self._thread is None else self._thread.submit(work).result()

    def _opened(
        self, problem: Problem, backend: Backend, baselines: Sequence[str], on_stage: Callable[[str], None]
    ) -> Session:
        if problem.id not in self._sessions:
            while len(self._sessions) >= self._most_open:
                self._close(next(iter(self._sessions)))
            closing = ExitStack()
            archive = self._archive_of(problem)
            opened = self._referee.open(
                problem, backend=backend, baselines=baselines, on_stage=on_stage, archive=archive
            )
            self._sessions[problem.id] = _Open(closing.enter_context(opened), closing)
        self._sessions.move_to_end(problem.id)
        return self._sessions[problem.id].session

    def _close(self, problem_id: str) -> None:
        opened = self._sessions.pop(problem_id, None)
        if opened is not None:
            opened.closing.close()

    def _close_all(self) -> None:
        for problem_id in list(self._sessions):
            self._close(problem_id)


class LaneSession:
    """A session as the lane lends it. See :class:`Session`."""

    def __init__(self, use: Callable[[Callable[[Session], Any]], Any], close: Callable[[], None]) -> None:
        self._use = use
        self.close = close

    def compile_ahead(self, backend: Backend) -> None:
        """Open it now, and begin to compile the torch.compile baselines."""
        self._use(lambda session: session.compile_ahead(backend))

    def judge(
        self,
        candidate: Candidate,
        *,
        control: bool = False,
        time: bool = True,
        confirm: bool = False,
        explain: bool = False,
        rivals: Sequence[Candidate] = (),
        within_s: float | None = None,
        as_kernelbench: bool = False,
    ) -> Evaluation:
        """Judge one candidate."""
        evaluation: Evaluation = self._use(
            lambda session: session.judge(
                candidate,
                control=control,
                time=time,
                confirm=confirm,
                explain=explain,
                rivals=rivals,
                within_s=within_s,
                as_kernelbench=as_kernelbench,
            )
        )
        return evaluation

    def call(self, entry: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Run a trusted tool on the problem in a sandboxed worker."""
        reply: dict[str, Any] = self._use(lambda session: session.call(entry, payload))
        return reply

    def machine_code(self, candidate: Candidate) -> str:
        """Fingerprint of what a candidate is built into."""
        found: str = self._use(lambda session: session.machine_code(candidate))
        return found

    def build_all(self, candidates: Sequence[Candidate]) -> tuple[BuiltCode, ...]:
        """Build candidates side by side while nothing is timed."""
        built: tuple[BuiltCode, ...] = self._use(lambda session: session.build_all(candidates))
        return built

    def builds_ahead(self, backend: Backend) -> bool:
        """Whether candidates can be built while others are timed."""
        ahead: bool = self._use(lambda session: session.builds_ahead(backend))
        return ahead

    def build_ahead(self, candidate: Candidate) -> None:
        """Begin to build a candidate that may be judged later."""
        self._use(lambda session: session.build_ahead(candidate))
