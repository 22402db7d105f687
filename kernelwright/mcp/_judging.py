"""Judge the candidates of a coding agent. The latest two sessions stay open between its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType

from kernelwright.config import Settings
from kernelwright.errors import InvalidReferenceError
from kernelwright.evaluator import Check
from kernelwright.pool import Sessions, once_more
from kernelwright.records import Candidate, Evaluation, InputGenerator, Problem

KEPT_SESSIONS = 2
JUDGEMENTS_OF_A_SESSION = 64  # each verdict says a little about a session's secret data

Tell = Callable[[str], None]


class Judging:
    """Judges candidates, one at a time. Belongs to one thread; a context manager.

    ``archive_of`` returns the archived input generators of a problem, which its candidates are checked on too.
    """

    def __init__(
        self, settings: Settings, archive_of: Callable[[Problem], Sequence[InputGenerator]] = lambda problem: ()
    ) -> None:
        self._settings = settings
        self._archive_of = archive_of
        self._sessions = Sessions(
            settings, most=KEPT_SESSIONS, judgements=JUDGEMENTS_OF_A_SESSION, archive_of=archive_of
        )
        self._tell: Tell = _tell_nobody

    def __enter__(self) -> Judging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def judge(self, candidate: Candidate, problem: Problem, depth: Check, *, tell: Tell) -> Evaluation:
        """Judge a candidate to ``depth``; ``tell`` is called with each stage.

        Raises:
            UsageError: the settings are impossible.
            MachineError, MissingToolError: this machine cannot judge it, or failed twice. The next call starts afresh.
        """
        self._tell = tell
        try:
            return once_more(lambda: self._judge(candidate, problem, depth))
        finally:
            self._tell = _tell_nobody

    def _judge(self, candidate: Candidate, problem: Problem, depth: Check) -> Evaluation:
        if not self._sessions.is_open:
            self._tell("sandbox")
        try:
            try:
                session = self._sessions.session(problem, candidate.backend, on_stage=lambda stage: self._tell(stage))
                return session.judge(candidate, depth)
            except InvalidReferenceError:
                # The referee turns this error into a verdict. It starts anew, since the session's worker may be dead.
                self._sessions.forget(problem.id)
                return self._sessions.referee().evaluate(
                    candidate,
                    problem,
                    depth,
                    baselines=self._settings.baselines,
                    on_stage=self._tell,
                    archive=self._archive_of(problem),
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all sessions and the referee with its sandbox. The next judgement opens new ones."""
        self._sessions.close()


def _tell_nobody(stage: str) -> None:
    """Ignore a stage."""
