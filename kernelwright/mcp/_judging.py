"""The referee and its sessions: opened when they are first wanted, the latest two kept."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from kernelwright.config import Settings
from kernelwright.errors import InvalidReferenceError, MachineError, SandboxError
from kernelwright.records import Backend, Candidate, Evaluation, InputGenerator, Problem

if TYPE_CHECKING:
    from kernelwright.evaluator import ProblemSession, Referee

KEPT_SESSIONS = 2
# A session has secret data of its own, about which each verdict says a little; and its workers do not live for ever.
JUDGEMENTS_OF_A_SESSION = 64
LIFE_OF_A_SESSION_S = 3600.0

Tell = Callable[[str], None]


@dataclass
class _Open:
    """A session on one problem for one backend."""

    problem: Problem
    backend: Backend
    session: ProblemSession
    ending: ExitStack
    opened_at: float
    judged: int = 0

    def serves(self, problem: Problem, backend: Backend) -> bool:
        """Whether a candidate can still be judged in it."""
        return (
            self.backend == backend
            and self.problem == problem
            and self.judged < JUDGEMENTS_OF_A_SESSION
            and clock.monotonic() - self.opened_at < LIFE_OF_A_SESSION_S
        )


class Judging:
    """Judges candidates, one at a time. Belongs to one thread; a context manager.

    ``archive_of`` knows the generators of inputs that a problem's candidates are checked on as well.
    """

    def __init__(
        self, settings: Settings, archive_of: Callable[[Problem], Sequence[InputGenerator]] = lambda problem: ()
    ) -> None:
        self._settings = settings
        self._archive_of = archive_of
        self._ending = ExitStack()
        self._referee: Referee | None = None
        self._open: list[_Open] = []  # the one that was used last stands last
        self._tell: Tell = _tell_nobody

    def __enter__(self) -> Judging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def judge(
        self, candidate: Candidate, problem: Problem, *, time: bool = True, explain: bool = False, tell: Tell
    ) -> Evaluation:
        """Judge a candidate, as :func:`kernelwright.evaluate` does; ``tell`` is told each stage.

        ``explain``: profile it as well where it is timed.

        Raises:
            UsageError: the settings ask for what cannot be.
            MachineError, MissingToolError: it cannot be judged here, or could not twice; the next call starts afresh.
        """
        self._tell = tell
        try:
            return self._judge(candidate, problem, time=time, explain=explain)
        except SandboxError:
            raise
        except MachineError:
            return self._judge(candidate, problem, time=time, explain=explain)
        finally:
            self._tell = _tell_nobody

    def _judge(self, candidate: Candidate, problem: Problem, *, time: bool, explain: bool) -> Evaluation:
        try:
            return self._judge_in_session(candidate, problem, time=time, explain=explain)
        except BaseException:
            self.close()
            raise

    def _judge_in_session(self, candidate: Candidate, problem: Problem, *, time: bool, explain: bool) -> Evaluation:
        try:
            held = self._session(problem, candidate.backend)
            held.judged += 1
            return held.session.judge(candidate, time=time, explain=explain)
        except InvalidReferenceError:
            # As a verdict, which is what the referee makes of it; anew, since a session's own worker may have gone.
            self._forget(problem)
            return self._opened().evaluate(
                candidate,
                problem,
                baselines=self._settings.baselines,
                time=time,
                on_stage=self._tell,
                archive=self._archive_of(problem),
            )

    def _session(self, problem: Problem, backend: Backend) -> _Open:
        held = next((entry for entry in self._open if entry.serves(problem, backend)), None)
        if held is None:
            self._forget(problem, backend)
            while len(self._open) >= KEPT_SESSIONS:
                self._open.pop(0).ending.close()
            held = self._new_session(problem, backend)
        else:
            self._open.remove(held)
        self._open.append(held)
        return held

    def _new_session(self, problem: Problem, backend: Backend) -> _Open:
        ending = ExitStack()
        opened = self._opened().open(
            problem,
            backend=backend,
            baselines=self._settings.baselines,
            on_stage=lambda stage: self._tell(stage),
            archive=self._archive_of(problem),
        )
        return _Open(problem, backend, ending.enter_context(opened), ending, clock.monotonic())

    def _forget(self, problem: Problem, backend: Backend | None = None) -> None:
        """Close the sessions on a problem, those of an older version of its file as well."""
        for entry in list(self._open):
            if entry.problem.id == problem.id and backend in (None, entry.backend):
                self._open.remove(entry)
                entry.ending.close()

    def _opened(self) -> Referee:
        if self._referee is None:
            self._tell("sandbox")
            from kernelwright.evaluator import Referee  # here, since it takes a second to load

            self._referee = self._ending.enter_context(Referee(self._settings))
        return self._referee

    def close(self) -> None:
        """End all sessions and the referee with its sandbox; the next judgement opens them anew."""
        self._referee = None
        with self._ending:
            while self._open:
                self._ending.callback(self._open.pop().ending.close)


def _tell_nobody(stage: str) -> None:
    """For stages that nobody waits for."""
