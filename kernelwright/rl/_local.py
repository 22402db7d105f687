"""The referee in this process as a scorer. It records every verdict, and judges no kernel twice in a run."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal

from kernelwright.config import Settings
from kernelwright.errors import InvalidReferenceError, MachineError, SandboxError, UsageError
from kernelwright.pool import Sessions, once_more, open_local_referee
from kernelwright.records import Backend, Candidate, Environment, Evaluation, Problem, RunConfig, TimingSample
from kernelwright.rl._scoring import MOST_FEEDBACK_CHARACTERS, MOST_REWARD, Scored, ScoreRequest
from kernelwright.rl.rewards import REWARDS, Attempt, Runs

if TYPE_CHECKING:
    from kernelwright.evaluator import Session
    from kernelwright.pool import OpenReferee
    from kernelwright.store import Store, StoredEvaluation

RECIPE: Final = "rl"  # the name of such runs in lists of runs
_WRITER: Final = "policy"
_ABOUT: Final = "about"
_MOST_FAULT_CHARACTERS: Final = 2_000
_CUT: Final = "\n[... cut ...]\n"


class LocalScorer:
    """Scores kernels with the referee on this machine. A context manager that belongs to one thread.

    The scorer creates a run for the first kernel and ends it on exit. With ``run_id`` it continues an existing run, and
    leaves it to the caller to end that. A kernel that was judged before in the run gets the stored verdict.

    Args:
        reward: the formula's name, one of :data:`kernelwright.rl.REWARDS`.
        sessions: number of referee sessions that are kept open.
        open_referee: makes the referee for settings.
        clock: monotonic seconds.

    Raises:
        UsageError: there is no such formula, or no such run.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        *,
        reward: str = "kernelwright",
        run_id: str | None = None,
        sessions: int = 4,
        open_referee: OpenReferee = open_local_referee,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if reward not in REWARDS:
            raise UsageError(f"no reward is called {reward!r}", hint=f"there is {', '.join(REWARDS)}")
        self.reward = reward
        self.run_id = None if run_id is None else store.run(run_id).id
        self._settings = settings = settings.for_boards()
        self._store = store
        self._is_ours = run_id is None
        self._pinned = {one.id: one for one in store.run_problems(self.run_id)} if self.run_id else {}
        self._problems: dict[str, Problem] = {}
        self._sessions = Sessions(
            settings, most=max(1, sessions), open_referee=open_referee, archive_of=store.archive, clock=clock
        )

    def __enter__(self) -> LocalScorer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._sessions.close()
        finally:
            broken = kind is not None and issubclass(kind, Exception)
            self._end("failed" if broken else "finished" if kind is None else "interrupted")

    def score(self, requests: Sequence[ScoreRequest]) -> list[Scored]:
        """One score for each request, in their order; the kernels of one problem are judged one after the other.

        After a fault of the machine, the kernel is tried once more in a new session. A second fault gives a score
        without a reward.

        Raises:
            UsageError: a problem is unknown, its reference cannot be used, or the settings cannot be met.
            SandboxError, MissingToolError: nothing can be judged here.
            StoreError: the store cannot be read or written.
        """
        asked = [(self.problem(request.problem), request) for request in requests]
        found: dict[int, Scored] = {}
        for (_, backend), members in _grouped(asked).items():
            candidates = {number: _candidate(*asked[number]) for number in members}
            problem = asked[members[0]][0]
            self._build_ahead(problem, backend, list(candidates.values())[1:])
            for number, candidate in candidates.items():
                found[number] = self._scored(candidate, problem)
        return [found[number] for number in range(len(asked))]

    def problem(self, name: str) -> Problem:
        """The problem that a name stands for, in the version that was first used.

        Raises:
            UsageError: there is no such problem, or its file cannot be used.
        """
        from kernelwright.datasets import find_problem

        if name not in self._problems:
            try:
                found = find_problem(name, self._settings.suite_dirs)
            except InvalidReferenceError as error:
                raise _unusable(name, error) from error
            self._problems[name] = self._pinned.get(found.id, found)
        return self._problems[name]

    def session(self, problem: Problem, backend: Backend = "cpp") -> Session:
        """A session of the referee on a problem, to build kernels, or to judge kernels without scoring them.

        Only a few sessions are kept open: ask again instead of holding one.

        Raises:
            InvalidReferenceError, MachineError: as :meth:`kernelwright.evaluator.Referee.open`.
        """
        return self._sessions.session(problem, backend, judges=0)

    def environment(self, backend: Backend) -> Environment:
        """The environment that judges candidates of a backend. Raises the errors of opening the referee."""
        return self._sessions.referee().environment_for(backend)

    def remember(self, about: str, kind: str, data: Mapping[str, Any], problem: Problem) -> None:
        """Store extra data with the run; :meth:`remembered` returns it, also in another process."""
        self._store.event(self._run_with(problem), kind, {_ABOUT: about, **data})

    def remembered(self, about: str) -> list[tuple[str, Mapping[str, Any]]]:
        """The data that the run has stored about something, as (kind, data) in order."""
        if self.run_id is None:
            return []
        asked = f"SELECT kind, data_json FROM events WHERE run_id = ? AND json_extract(data_json, '$.{_ABOUT}') = ? "
        rows = self._store.query(f"{asked} ORDER BY id", [self.run_id, about])
        return [(row["kind"], json.loads(row["data_json"])) for row in rows]

    def _scored(self, candidate: Candidate, problem: Problem) -> Scored:
        try:
            known = self._known(candidate)
            if known is not None:
                whole = self._store.evaluation(known.id).evaluation  # listed evaluations lack samples and messages
                return self._as_score(whole, again=True)
            evaluation = self._judged(candidate, problem)
        except SandboxError:
            raise
        except InvalidReferenceError as error:
            raise _unusable(problem.id, error) from error
        except MachineError as error:
            fault = _storable(str(error))[:_MOST_FAULT_CHARACTERS]
            return Scored(reward=None, status=None, candidate=candidate.sha256, fault=fault)
        self._store.record_evaluation(evaluation, run_id=self._run_with(problem), action={"reward": self.reward})
        return self._as_score(evaluation, again=False)

    def _known(self, candidate: Candidate) -> StoredEvaluation | None:
        """The verdict on this kernel, for this backend, from this run and this machine."""
        if self.run_id is None:
            return None
        found = self._store.evaluations(
            run_id=self.run_id,
            problem=candidate.problem_id,
            candidate=candidate.sha256,
            environment=self.environment(candidate.backend).id,
            control=False,
            newest_first=True,
        )
        fitting = (one for one in found if one.verdict.backend == candidate.backend and one.quarantined is None)
        return next(fitting, None)

    def _judged(self, candidate: Candidate, problem: Problem) -> Evaluation:
        """The evaluation of the first try or the second. A reference may fail only because its worker has gone."""
        return once_more(lambda: self._judge_once(candidate, problem), also=(InvalidReferenceError,))

    def _judge_once(self, candidate: Candidate, problem: Problem) -> Evaluation:
        try:
            return self._sessions.session(problem, candidate.backend).judge(candidate)
        except BaseException:
            self._sessions.close()
            raise

    def _build_ahead(self, problem: Problem, backend: Backend, later: Sequence[Candidate]) -> None:
        """Build the later kernels of a group while others are timed, if this machine has cores for that."""
        if not later:
            return
        try:
            session = self._sessions.session(problem, backend, judges=0)
            if session.builds_ahead(backend):
                for candidate in later:
                    if self._known(candidate) is None:
                        session.build_ahead(candidate)
        except SandboxError:
            raise
        except (MachineError, InvalidReferenceError):  # judging meets this fault again, and handles it
            self._sessions.close()

    def _as_score(self, evaluation: Evaluation, *, again: bool) -> Scored:
        verdict = evaluation.verdict
        attempt = Attempt.of(verdict, evaluation.candidate, runs_of(evaluation.samples))
        return Scored(
            reward=_sensible(REWARDS[self.reward](attempt)),
            status=verdict.status,
            candidate=verdict.candidate,
            speedup=_sensible(attempt.speedup),
            passed=verdict.passed,
            again=again,
            feedback=feedback_on(evaluation),
        )

    def _run_with(self, problem: Problem) -> str:
        """The id of the run, after adding the problem to it; creates the run if there is none."""
        if self.run_id is None:
            self.run_id = self._store.create_run(run_config(self._settings), [])
            self._store.event(self.run_id, "rl", {"reward": self.reward})
        if problem.id not in self._pinned:
            self._store.add_run_problem(self.run_id, problem)
            self._store.set_problem_state(self.run_id, problem.id, "running")
            self._pinned[problem.id] = problem
        return self.run_id

    def _end(self, status: Literal["finished", "failed", "interrupted"]) -> None:
        if self.run_id is None or not self._is_ours:
            return
        for problem in self._pinned:
            self._store.set_problem_state(self.run_id, problem, "done")
        self._store.set_run_status(self.run_id, status)


def runs_of(samples: Iterable[TimingSample]) -> Runs:
    """(eager PyTorch, candidate) latencies in ms of each pair of windows."""
    windows: dict[tuple[str, int, int], dict[str, float]] = {}
    for sample in samples:
        windows.setdefault((sample.phase, sample.process, sample.pair), {})[sample.role] = sample.latency_ms
    return tuple((one["eager"], one["candidate"]) for one in windows.values() if {"eager", "candidate"} <= set(one))


def feedback_on(evaluation: Evaluation) -> str:
    """The feedback to an author on a verdict: its evidence, as a Coder's prompt quotes it."""
    from kernelwright.prompts import KernelView, evidence

    view = KernelView.of(evaluation.candidate, evaluation.verdict, evaluation.artifacts)
    text = evidence(view)
    if len(text) > MOST_FEEDBACK_CHARACTERS:
        text = evidence(view.model_copy(update={"messages": ""}))
    if len(text) > MOST_FEEDBACK_CHARACTERS:
        half = (MOST_FEEDBACK_CHARACTERS - len(_CUT)) // 2
        text = text[:half] + _CUT + text[-half:]
    return _storable(text)


def _grouped(asked: Sequence[tuple[Problem, ScoreRequest]]) -> dict[tuple[str, Backend], list[int]]:
    """Positions of the requests by problem and backend, in the order in which these first occur."""
    groups: dict[tuple[str, Backend], list[int]] = {}
    for number, (problem, request) in enumerate(asked):
        groups.setdefault((problem.id, request.backend), []).append(number)
    return groups


def _candidate(problem: Problem, request: ScoreRequest) -> Candidate:
    return Candidate(
        problem_id=problem.id,
        source=request.source,
        backend=request.backend,
        author=request.author,
        note=request.note,
    )


def run_config(settings: Settings) -> RunConfig:
    """The configuration of a run whose kernels come from a policy."""
    return RunConfig(
        problems=(),
        coder=_WRITER,
        backend=settings.backend,
        rounds=1,
        sandbox=settings.sandbox,
        threads=settings.threads,
        baselines=settings.baselines,
        recipe=RECIPE,
        suite_dirs=tuple(str(folder) for folder in settings.suite_dirs),
        settings=settings.model_dump(mode="json"),
    )


def _unusable(name: str, error: InvalidReferenceError) -> UsageError:
    return UsageError(
        f"{name} cannot be trained on, its reference cannot be used: {error.message}",
        hint=error.hint or f"see 'kernelwright problems lint {name}', or leave it out",
        **{**error.data, "problem": name},
    )


def _sensible(value: float | None) -> float | None:
    """The value, or None if no measurement can give it."""
    return value if value is not None and math.isfinite(value) and abs(value) <= MOST_REWARD else None


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
