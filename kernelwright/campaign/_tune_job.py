"""The tuning of one kernel: build and race settings, then confirm the best beside the default, within the budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelwright.agents import MACHINE_CODE, RIVALS, Duplicate
from kernelwright.campaign._costs import BASELINE, Costs, learned_costs
from kernelwright.campaign._results import CampaignEvent, RunStatus
from kernelwright.campaign.ledger import StoreLedger, duplicates_of
from kernelwright.campaign.searched import attempt_of_row
from kernelwright.campaign.stopping import StopWatch
from kernelwright.campaign.tune_results import CostModelUse, Outcome, TunedSetting, TunePlan, TuneResult
from kernelwright.errors import MachineError, MissingToolError, SandboxError
from kernelwright.evaluator import Confirm, Search
from kernelwright.evolution import Tuning, in_words
from kernelwright.records import Candidate, Evaluation, Interval, Problem, Speedup
from kernelwright.records.verdicts import BuiltCode

if TYPE_CHECKING:
    from kernelwright.evaluator import Session
    from kernelwright.evolution import Rank
    from kernelwright.store import Store

SPARE_S = 2.0  # time kept for the end of a run
TRIES = 2  # tries of a judgement if the machine fails
_EVALUATION_S = 3.0  # assumed duration of an evaluation before the first one
_CHECK_S = 1.0  # duration of the check before a race
_PROCESS_PAIRS, _TURNS, _STARTS_S = 5, 12, 1.0  # of a confirmation: least pairs, turns of a pair, seconds to start it
_MORE_SIDES = 1.6  # how much longer a turn takes in a confirmation, where four processes take turns


def tuning_of(candidate: Candidate, plan: TunePlan, rank: Rank | None = None) -> Tuning:
    """A new search for a plan, without any evaluations.

    Raises:
        UsageError: the candidate declares no knobs, or the sampler cannot search them.
    """
    return Tuning(candidate, baseline=BASELINE, sampler=plan.sampler, most=plan.max_evaluations, rank=rank)


class _Stopped(Exception):
    """The run stops before its end; everything in flight was saved."""


@dataclass
class TuneJob:
    """The tuning of one kernel. ``left_s`` gives the seconds left. Relative differences up to ``noise`` count as none,
    and those above ``least`` as real. ``race_pairs`` is the most pairs for a setting, ``environment`` the id of the
    environment that judges."""

    run_id: str
    problem: Problem
    given: Candidate
    plan: TunePlan
    store: Store
    watch: StopWatch
    left_s: Callable[[], float]
    tell: Callable[[CampaignEvent], None]
    noise: float
    least: float
    race_pairs: int
    environment: str
    _longest_s: float = 0.0  # duration of the longest evaluation, build included
    _turns_s: list[float] = field(default_factory=list)  # seconds of a turn, one entry for each evaluation
    _costs: Costs | None = None
    _built: dict[str, BuiltCode] = field(default_factory=dict)

    def run(self, session: Session) -> TuneResult:
        """Search and confirm; returns the result."""
        self._ledger = StoreLedger(self.store, self.run_id, self.problem.id)
        self._tuning = tuning_of(self.given, self.plan, self._rank())
        self._replay()
        space = self._tuning.space
        self._note(
            f"run {self.run_id}: {space.size} settings of {', '.join(knob.name for knob in space.free)}, "
            f"at most {self.plan.max_evaluations} judged, {max(self.left_s(), 0):.0f} s"
        )
        try:
            self._search(session)
            return self._confirm(session)
        except _Stopped as stopped:
            return self._unfinished(str(stopped))

    def _rank(self) -> Rank | None:
        """A function that ranks settings before they are built. None if the store's data give no useful model."""
        if not self.plan.cost_model:
            self._model = CostModelUse(reason="as was asked")
            return None
        costs = learned_costs(self.store, self.given.backend, self.environment, self.run_id)
        self._costs, self._model = costs, costs.use
        if costs.before.model is None:
            return None
        return lambda settings: costs.expected(self.problem, [self._tuning.candidate_of(s) for s in settings])

    # ------------------------------------------------------------------------------------------ searching

    def _replay(self) -> None:
        """Replay the run's rows to the search in their order, asking it before each row as in the original run."""
        rows = self.store.evaluations(
            run_id=self.run_id, problem=self.problem.id, control=False, confirmed=False, purpose="search"
        )
        duplicates = [found for name, found in duplicates_of(self.store, self.run_id) if name == self.problem.id]
        for number in range(len(rows) + 1):
            for duplicate in (found for found in duplicates if found.after == number):
                self._tuning.ask()
                self._tuning.tell_duplicate(duplicate)
            if number < len(rows):
                self._tuning.ask()
                self._tuning.tell(attempt_of_row(rows[number]))
        self._rows = len(rows)

    def _search(self, session: Session) -> None:
        while batch := self._tuning.ask():
            self._stop_if_asked()
            if self._rows and self.left_s() < self._next_s() + self._confirmation_s():
                self._note(f"no time for more settings: {self.left_s():.0f} s are left")
                return
            if batch[0].sha256 not in self._built:
                self._build(session, batch)
            self._one(session, self._first(batch))

    def _first(self, batch: Sequence[Candidate]) -> Candidate:
        """The most promising built setting. Timing it first lets later ones lose their races sooner."""
        metrics = {candidate.sha256: self._built[candidate.sha256].metrics for candidate in batch}
        if self._costs is None or not all(metrics.values()):
            return batch[0]
        expected = self._costs.expected_built(self.problem, batch, metrics)
        return batch[max(range(len(batch)), key=lambda place: (expected[place], -place))]

    def _build(self, session: Session, batch: Sequence[Candidate]) -> None:
        """Build a batch before it is timed. For a GPU backend, builds run in the background while others are timed."""
        if session.builds_ahead(batch[0].backend):
            for candidate in batch:
                session.build_ahead(candidate)
            self._built = {candidate.sha256: BuiltCode() for candidate in batch}
            return
        self._built = dict(zip((c.sha256 for c in batch), session.build_all(batch), strict=True))

    def _one(self, session: Session, candidate: Candidate) -> None:
        code = self._built[candidate.sha256].machine_code
        setting = self._tuning.setting_of(candidate)
        twin = self._tuning.twin_of(candidate, code)
        if twin is not None:
            duplicate = Duplicate(
                round=self._rows,
                after=self._rows,
                candidate=candidate.sha256,
                twin=twin.candidate.sha256,
                same="machine code",
                action={"setting": setting},
            )
            self._ledger.add_duplicate(duplicate)
            self._tuning.tell_duplicate(duplicate)
            self._note(f"{self._named(candidate)}: the same machine code as {self._named(twin.candidate)}")
            return
        rivals = self._tuning.rivals()
        began_s = self.left_s()
        evaluation = self._judged(session, candidate, rivals)
        action = {"setting": setting, MACHINE_CODE: code, RIVALS: [rival.sha256 for rival in rivals]}
        evaluation_id = self._ledger.record(evaluation, step=self._rows, action=action)
        self._longest_s = max(self._longest_s, began_s - self.left_s())
        timing = evaluation.verdict.timing
        if timing is not None:
            self._turns_s.append(evaluation.verdict.seconds.get("time", 0.0) / max(timing.pairs, 1))
        self._rows += 1
        self._tuning.tell(attempt_of_row(self.store.evaluation(evaluation_id)))
        self._note(
            f"{self._rows}/{self.plan.max_evaluations} {self._named(candidate)}: {self._fate(evaluation, rivals)}"
        )

    def _judged(
        self, session: Session, candidate: Candidate, rivals: tuple[Candidate, ...], *, confirm: bool = False
    ) -> Evaluation:
        for left in reversed(range(TRIES)):
            try:
                within_s = self.left_s() - SPARE_S
                depth = Confirm(rivals=rivals, within_s=within_s) if confirm else Search(rivals=rivals)
                return session.judge(candidate, depth)
            except SandboxError:
                raise
            except MachineError as error:
                self.store.event(self.run_id, "machine-error", {"problem": self.problem.id, "error": str(error)})
                self._note(f"fault of the machine: {error}")
                if not left or self.left_s() < (self._confirmation_s() if confirm else self._next_s()):
                    raise
        raise AssertionError("unreachable")

    def _fate(self, evaluation: Evaluation, rivals: tuple[Candidate, ...]) -> str:
        verdict = evaluation.verdict
        if not verdict.passed or verdict.timing is None:
            return (
                f"{verdict.status.value}: {verdict.reason.strip().splitlines()[0]}" if verdict.reason else "not timed"
            )
        ratio = verdict.timing.rivals.get(rivals[0].sha256) if rivals else None
        if ratio is None:
            return f"{verdict.timing.latency_ms.median:.4g} ms"
        said = f"{ratio.median:.3f}x [{ratio.low:.3f}, {ratio.high:.3f}] of {self._named(rivals[0])}"
        return f"{said}, {verdict.timing.pairs} pairs" + (": the best so far" if ratio.faster else "")

    def _named(self, candidate: Candidate) -> str:
        return in_words(self._tuning.changes(self._tuning.setting_of(candidate))) or "the default"

    # ------------------------------------------------------------------------------------------ time

    def _stop_if_asked(self) -> None:
        if reason := self.watch.reason():
            raise _Stopped(reason)

    def _next_s(self) -> float:
        """The seconds that another setting may take, even if its race uses all pairs."""
        return max(self._longest_s, _CHECK_S + self.race_pairs * self._turn_s()) if self._longest_s else _EVALUATION_S

    def _turn_s(self) -> float:
        """The median duration of a turn."""
        return sorted(self._turns_s)[len(self._turns_s) // 2] if self._turns_s else _EVALUATION_S / _TURNS

    def _confirmation_s(self) -> float:
        """The seconds for the shortest confirmation and the end of the run."""
        return SPARE_S + _PROCESS_PAIRS * (_STARTS_S + _TURNS * _MORE_SIDES * self._turn_s())

    # ------------------------------------------------------------------------------------------ ending

    def _confirm(self, session: Session) -> TuneResult:
        """Time the winner and the default together in fresh processes. If the default won, use the runner-up."""
        tuning = self._tuning
        default = tuning.tried[tuning.default.sha256]
        evaluation_id = self._ledger.find_evaluation(tuning.default)
        if evaluation_id is None or tuning.best is None:
            verdict = None if evaluation_id is None else self._ledger.evaluation(evaluation_id).verdict
            if verdict is not None and verdict.passed:
                raise MissingToolError(
                    f"kernels of {self.given.backend} are not timed here, so no setting is better than another",
                    hint="tune on a machine with a device for them",
                )
            why = "" if verdict is None else f"{verdict.status.value}: {verdict.reason}"
            return self._result("failed", f"the default setting does not pass: {why}", best=None)
        assert default.value is not None
        if len(tuning.tried) == 1 and self.plan.max_evaluations > 1:  # one setting alone supports no conclusion
            raise _Stopped("budget")
        finalists = tuning.finalists
        refused = ""
        for number, finalist in enumerate(finalists[:TRIES]):
            first = number == 0 and tuning.improved
            winner, other = (finalist, tuning.default) if first else (tuning.default, finalist)
            found, evaluation = self._confirmed(session, winner, (other,))
            if first and not evaluation.verdict.passed:
                refused = f"the confirmation refused {self._named(finalist)}: {evaluation.verdict.reason}"
                self._note(refused)
                continue
            result = self._concluded(finalist, found, evaluation, default_judged=not first)
            if not first and result.ratio is not None and result.ratio.low > 1 + self.least:
                return self._turned(session, finalist, result)
            return result
        found, evaluation = self._confirmed(session, tuning.default, ())
        return self._concluded(None, found, evaluation, default_judged=True)

    def _turned(self, session: Session, finalist: Candidate, result: TuneResult) -> TuneResult:
        """The result after a confirmation found the default slower than a setting that had not won its race.
        A confirmation of that setting decides, if there is time for it."""
        if self._ledger.find_confirmation(finalist) is None and self.left_s() < self._confirmation_s():
            return result
        found, evaluation = self._confirmed(session, finalist, (self._tuning.default,))
        return (
            self._concluded(finalist, found, evaluation, default_judged=False) if evaluation.verdict.passed else result
        )

    def _confirmed(
        self, session: Session, candidate: Candidate, beside: tuple[Candidate, ...]
    ) -> tuple[str, Evaluation]:
        found = self._ledger.find_confirmation(candidate)
        if found is None:
            self._stop_if_asked()
            if self.left_s() < self._confirmation_s():
                raise _Stopped("budget")
            began_s = self.left_s()
            evaluation = self._judged(session, candidate, beside, confirm=True)
            found = self._ledger.record(evaluation, step=self._rows, action={RIVALS: [c.sha256 for c in beside]})
            self._note(f"confirmed {self._named(candidate)} in {began_s - self.left_s():.1f} s")
        return found, self._ledger.evaluation(found)

    def _concluded(
        self, finalist: Candidate | None, evaluation_id: str, evaluation: Evaluation, *, default_judged: bool
    ) -> TuneResult:
        default, verdict = self._tuning.default, evaluation.verdict
        if not verdict.passed or verdict.timing is None:
            return self._result("failed", f"the confirmation refused the default: {verdict.reason}", best=None)
        if finalist is None:
            return self._result("default", "", best=default, evaluation=evaluation_id)
        raced = verdict.timing.rivals.get(finalist.sha256 if default_judged else default.sha256)
        if raced is None:
            return self._result("undecided", "they could not be timed together", best=default, nearest=finalist)
        ratio = _inverse(raced) if default_judged else Interval(median=raced.median, low=raced.low, high=raced.high)
        outcome: Outcome = "undecided"
        if raced.faster and not default_judged:
            outcome = "improved"
        elif ratio.high < 1 + self.noise:
            outcome = "default"
        best = finalist if outcome == "improved" else default
        mine = evaluation_id if (outcome == "improved") != default_judged else None
        return self._result(
            outcome,
            "",
            best=best,
            nearest=finalist,
            ratio=ratio,
            evaluation=mine or self._ledger.find_evaluation(best),
        )

    def _unfinished(self, reason: str) -> TuneResult:
        status: RunStatus = "paused" if reason in ("budget", "paused") else "interrupted"
        return self._result("unfinished", reason, best=None, status="cancelled" if reason == "cancelled" else status)

    def _result(
        self,
        outcome: Outcome,
        reason: str,
        *,
        best: Candidate | None,
        nearest: Candidate | None = None,
        ratio: Interval | None = None,
        evaluation: str | None = None,
        status: RunStatus = "finished",
    ) -> TuneResult:
        tuning = self._tuning
        return TuneResult(
            run_id=self.run_id,
            status=status,
            reason=reason,
            problem=self.problem.id,
            default=tuning.default.sha256,
            default_setting=tuning.space.default,
            outcome=outcome,
            best=None if best is None else best.sha256,
            setting={} if best is None else tuning.setting_of(best),
            nearest=None if nearest is None else nearest.sha256,
            nearest_changes={} if nearest is None else tuning.changes(tuning.setting_of(nearest)),
            ratio=ratio,
            evaluation=evaluation,
            space=tuning.space.size,
            exhaustive=tuning.search.exhaustive,
            sampler=self.plan.sampler,
            judged=self._rows,
            tried=_tried(tuning, self._ledger),
            cost_model=self._model,
        )

    def _note(self, text: str) -> None:
        self.tell(CampaignEvent("note", self.problem.id, {"text": text}))


def _tried(tuning: Tuning, ledger: StoreLedger) -> tuple[TunedSetting, ...]:
    """Every setting that was looked at, in order."""
    found = []
    for sha256, tried in tuning.tried.items():
        evaluation_id = None if tried.twin else ledger.find_evaluation(tried.candidate)
        verdict = None if evaluation_id is None else ledger.evaluation(evaluation_id).verdict
        found.append(
            TunedSetting(
                candidate=sha256,
                setting=tried.setting,
                changes=tuning.changes(tried.setting),
                status=None if verdict is None else verdict.status,
                reason="" if verdict is None else verdict.reason,
                speedup=None if tried.value is None else math.exp(tried.value),
                beside=tried.beside,
                ratio=tried.ratio,
                twin=tried.twin,
            )
        )
    return tuple(found)


def _inverse(ratio: Speedup) -> Interval:
    return Interval(median=1 / ratio.median, low=1 / ratio.high, high=1 / ratio.low)
