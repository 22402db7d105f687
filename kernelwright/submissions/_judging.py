"""Judge one submission: check it in one session, confirm it in another, and record each once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Literal

from kernelwright.config import Settings
from kernelwright.errors import InvalidReferenceError, UsageError
from kernelwright.records import Candidate, Problem
from kernelwright.submissions._records import Outcome, Submission, storable
from kernelwright.submissions._spool import Claim

if TYPE_CHECKING:
    from kernelwright.evaluator import RefereeLike
    from kernelwright.pool import OpenReferee
    from kernelwright.store import Store, StoredEvaluation


MAX_TRIES: Final = 3
AUTHOR_PREFIX: Final = "submitted:"

_STANDING: Final = (
    "SELECT id FROM ruling WHERE candidate = ? AND problem = ? AND environment_id = ? "
    "AND confirmed AND status = 'PASSED' AND NOT quarantined AND coalesce(json_extract(verdict_json, '$.eligible'), 1) "
    "AND problem_version IN (SELECT version FROM current_problems)"
)

Part = Literal["check", "confirm"]


class Judging:
    """Judges submissions with a referee that is opened on first use. Belongs to one thread."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        open_referee: OpenReferee | None,
        tell: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> None:
        self._settings = settings.for_boards()
        self._store = store
        self._open_referee = open_referee
        self._tell = tell
        self._stop = stop
        self._referee: RefereeLike | None = None
        self._ending = ExitStack()

    @property
    def is_open(self) -> bool:
        """Whether the referee is open."""
        return self._referee is not None

    def close(self) -> None:
        """Close the referee with its sandbox. The next submission opens a new one."""
        self._referee = None
        self._ending.close()

    def judge(self, claim: Claim) -> Outcome | None:
        """Judge a submission. Returns its outcome, or None if ``stop`` asks to end between its sessions.

        Raises:
            MachineError, MissingToolError: this machine cannot judge it now.
            StoreError: the store cannot be read or written.
        """
        submission = claim.submission
        try:
            problem, candidate = self._read(submission)
        except (UsageError, InvalidReferenceError) as error:
            return Outcome(state="failed", reason=storable(str(error)))
        self._store.record_problem(problem)
        done = self._recorded(submission, candidate)
        try:
            for part in self._parts(candidate):
                if part not in done:
                    if part == "check" and (known := self._standing(candidate)) is not None:
                        return _stands(known, candidate)
                    if claim.tries > MAX_TRIES:
                        return _outcome(done, "failed", f"it was tried {claim.tries - 1} times: {claim.reason}")
                    if self._stop():
                        return None
                    done[part] = self._session(submission, candidate, problem, part)
                if not done[part].verdict.passed:
                    break
        except (UsageError, InvalidReferenceError) as error:  # the problem cannot be judged by this version
            return _outcome(done, "failed", storable(str(error)))
        return _outcome(done, "judged")

    def _read(self, submission: Submission) -> tuple[Problem, Candidate]:
        from kernelwright.campaign import language_of
        from kernelwright.datasets import find_problem

        problem = find_problem(submission.problem_id, self._settings.suite_dirs)
        candidate = Candidate(
            problem_id=problem.id,
            source=submission.source,
            backend=submission.backend or self._settings.backend,
            operator="given",
            author=f"{AUTHOR_PREFIX}{submission.author}",
            note=submission.note,
        )
        shown = language_of(candidate)
        if submission.backend not in (None, shown):
            raise UsageError(f"its kernels are for {shown}, not for {submission.backend}")
        return problem, candidate.model_copy(update={"backend": shown})

    def _parts(self, candidate: Candidate) -> tuple[Part, ...]:
        """The sessions of a candidate: two, or one if its kernels cannot be timed here."""
        from kernelwright.campaign import device_class_of

        timed = device_class_of(candidate.backend, self._settings) != "interpreter"
        return ("check", "confirm") if timed else ("check",)

    def _recorded(self, submission: Submission, candidate: Candidate) -> dict[str, StoredEvaluation]:
        """The evaluations of this submission by session, recorded before an earlier judging process died."""
        found = self._store.evaluations(
            problem=candidate.problem_id,
            candidate=candidate.sha256,
            environment=self._environment_of(candidate),
            control=False,
            current_only=True,
        )
        return {
            str(stored.action.get("session")): stored
            for stored in found
            if stored.action.get("submission") == submission.id
        }

    def _standing(self, candidate: Candidate) -> StoredEvaluation | None:
        """The confirmation by which the same kernel, byte for byte and by any author, is already on the board.

        The kernel is not judged again. That would cost time, and bad luck could then refuse the kernel of its first
        author each time that someone submits it again.
        """
        rows = self._store.query(_STANDING, [candidate.sha256, candidate.problem_id, self._environment_of(candidate)])
        return self._store.evaluation(rows[0]["id"]) if rows else None

    def _session(self, submission: Submission, candidate: Candidate, problem: Problem, part: Part) -> StoredEvaluation:
        """Judge the candidate in a new session, and record the evaluation in one transaction."""
        from kernelwright.evaluator import Check, Confirm  # imported here, because it takes a second to load

        evaluation = self._opened().evaluate(
            candidate,
            problem,
            Confirm() if part == "confirm" else Check(),
            baselines=self._settings.baselines,
            on_stage=lambda stage: self._tell(f"{submission.id}: {stage}"),
            archive=self._store.archive(problem),
        )
        action = {"submission": submission.id, "session": part}
        return self._store.evaluation(self._store.record_evaluation(evaluation, action=action))

    def _environment_of(self, candidate: Candidate) -> str:
        return self._opened().environment_for(candidate.backend).id

    def _opened(self) -> RefereeLike:
        if self._referee is None:
            from kernelwright.pool import open_local_referee  # imported here, because it takes a second to load

            opened = (self._open_referee or open_local_referee)(self._settings)
            self._referee = self._ending.enter_context(opened)
        return self._referee


def _outcome(done: dict[str, StoredEvaluation], state: Literal["judged", "failed"], reason: str = "") -> Outcome:
    made = sorted(done.values(), key=lambda stored: stored.id)
    status = made[-1].verdict.status.value if made and state == "judged" else None
    if state == "judged":
        reason = made[-1].verdict.reason or ("" if "confirm" in done else "checked; it cannot be timed here")
    return Outcome(state=state, evaluations=tuple(stored.id for stored in made), status=status, reason=storable(reason))


def _stands(known: StoredEvaluation, candidate: Candidate) -> Outcome:
    whose = "" if known.candidate.author == candidate.author else f", made by {known.candidate.author}"
    return Outcome(
        state="judged",
        evaluations=(known.id,),
        status=known.verdict.status.value,
        reason=storable(f"this kernel stands on the board already{whose}, and was not judged again"),
    )
