"""Times candidates that passed their check: turns for the search, fresh processes to confirm, a floor for both.

A clock takes the turns and ``figures.intervals`` computes the intervals. This module decides which workers are timed,
how often, and what follows from their times.
"""

from __future__ import annotations

import contextlib
import functools
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import Literal

import numpy as np

from kernelwright.config import Settings
from kernelwright.errors import MachineError
from kernelwright.evaluator.accuracy.trials import CheckSet
from kernelwright.evaluator.figures import intervals as statistics
from kernelwright.evaluator.host.seat import Seat
from kernelwright.evaluator.timing.clock import Clock
from kernelwright.evaluator.timing.clockwork import FLOOR_SHARE
from kernelwright.evaluator.timing.turns import ReadTimes, Turn, Turns
from kernelwright.evaluator.verdict.failures import refuse
from kernelwright.evaluator.verdict.launch import Launcher
from kernelwright.evaluator.verdict.progress import Progress, Refused
from kernelwright.evaluator.verdict.rivals import Races, RivalFailed, Rivals
from kernelwright.evaluator.wire.claims import WorkerFailed
from kernelwright.evaluator.wire.roles import CONTROL, is_foreign
from kernelwright.records import Candidate, Interval, Problem, Speedup, Status, Timing
from kernelwright.records.verdicts import TOO_SMALL_TO_TIME, FailedStage

_TIMEABLE_MS = 0.01  # no claim of a speedup if the reference takes less than this,
_TIMEABLE_SLOWLY_MS = 0.05  # or less than this with hardly any work to do, on a slow machine; hardly any is:
_LITTLE_BYTES, _LITTLE_FLOPS = 8 << 10, 100_000
_CONFIRM_TRIES = 2  # a confirmation whose control strays is void, and is tried once more
_LOOKS_AT_OWN = 2  # looks at the own kernels' share; both must object
_FLOOR_TRIES = 2  # times that the floor is measured again, which only lowers it, before it refuses


class Timekeeper:
    """Times candidates of one problem beside its baselines."""

    def __init__(
        self,
        settings: Settings,
        problem: Problem,
        clock: Clock,
        launcher: Launcher,
        baselines: Sequence[str],
    ) -> None:
        self._settings, self._method = settings, settings.measurement
        self._problem = problem
        self._clock = clock
        self._workers = clock.workers
        self._clockwork = clock.clockwork
        self._launcher = launcher
        self._baselines = tuple(baselines)

    def search(
        self,
        candidate: Candidate,
        side: Seat,
        check_set: CheckSet,
        progress: Progress,
        rivals: Sequence[Candidate] = (),
    ) -> None:
        """Time a candidate in turns with baselines and rivals until every comparison is decided.

        A candidate that can beat none of its rivals is timed only up to the next look at the baselines.

        A process may happen to get memory that is slow to read. A candidate that is refused because its outputs are
        slow to read is timed once more, in another process.

        Args:
            side: a worker with the candidate, that has passed its check.
        """
        against, kept = Rivals(rivals, self._launcher.start_rival), len(progress.samples)
        try:
            self._raced(side, check_set, progress, against)
        except Refused:
            if not progress.read_times.refused:
                raise
            del progress.samples[kept:]
            self._call_back(side, "time", progress)
            progress.read_times = ReadTimes()
            with contextlib.ExitStack() as ending:
                another = self._launcher.start(candidate, check_set, "time", progress)
                ending.callback(another.end)
                self._raced(another, check_set, progress, against)
        self._floor(check_set, progress)

    def _raced(self, side: Seat, check_set: CheckSet, progress: Progress, against: Rivals) -> None:
        while True:
            kept = len(progress.samples)
            try:
                self._search(side, check_set, progress, against)
                return
            except RivalFailed:
                del progress.samples[kept:]
                self._call_back(side, "time", progress)

    def _search(self, side: Seat, check_set: CheckSet, progress: Progress, rivals: Rivals) -> None:
        with contextlib.ExitStack() as ending:
            others = []
            for other in rivals.start(check_set, progress):
                others.append(other)
                ending.callback(other.end)
            twins = [self._workers.live_twin(name, check_set) for name in self._twin_names()]
            self._race(side, [*twins, *others], check_set, progress, rivals)

    def _race(
        self, side: Seat, others: Sequence[Seat], check_set: CheckSet, progress: Progress, rivals: Rivals
    ) -> None:
        pair, looks = 0, self._method.looks
        races = Races(rivals.roles, noise_bound=self._method.race_noise_bound, most_pairs=self._method.race_pairs)
        with self._turns([side, *others], check_set, side, "time", progress, rivals) as turns:
            tests = {
                name: statistics.SequentialTest(
                    noise_bound=self._method.search_noise_bound,
                    looks=self._method.looks,
                    target_half_width=self._method.target_half_width,
                )
                for name in self._timed_baselines()
            }
            looked_at = secrets.randbelow(max(self._method.looks[0], 1))
            while (
                progress.read_times.doubtful
                or not races.over
                or (any(test.decision is None for test in tests.values()) and not (races.lost and pair in looks))
            ):
                if pair == looked_at:
                    self._look(turns, "time", progress)
                claims = self._turn(turns, pair, 0, "search", progress).claims
                for name, test in tests.items():
                    test.add(claims[name])
                races.add(claims)
                pair += 1
        intervals = {name: test.interval() for name, test in tests.items()}
        bound = self._method.search_noise_bound
        self._conclude(check_set, progress, intervals, processes=1, pairs=pair, confirmed=False, noise_bound=bound)
        self._note_rivals(progress, {rivals.sha256(role): found for role, found in races.intervals().items()})

    def _call_back(self, side: Seat, stage: FailedStage, progress: Progress) -> None:
        """Call the candidate back from the door, so that other turns can begin."""
        try:
            side.leave(timeout_s=self._settings.call_timeout_s)
        except WorkerFailed as failed:
            refuse(self._problem.id, failed, side, stage, progress)

    @staticmethod
    def _note_control(progress: Progress, values: Sequence[float], interval: statistics.LogInterval) -> None:
        """Add to the timing by how much two processes of the same code differed."""
        assert progress.timing is not None
        median, low, high = interval.ratios()
        scatter = math.expm1(float(np.sqrt(np.mean(np.square(values)))))
        noted = {"control": Interval(median=median, low=low, high=high), "control_scatter": scatter}
        progress.timing = progress.timing.model_copy(update=noted)

    def _note_rivals(self, progress: Progress, found: Mapping[str, statistics.LogInterval]) -> None:
        """Add the comparison with rivals, by hash, to the timing."""
        assert progress.timing is not None
        least = math.log1p(self._method.race_noise_bound)
        rivals = {}
        for sha256, interval in found.items():
            median, low, high = interval.ratios()
            rivals[sha256] = Speedup(median=median, low=low, high=high, faster=interval.low > least)
        progress.timing = progress.timing.model_copy(update={"rivals": rivals})

    def confirm(
        self,
        candidate: Candidate,
        check_set: CheckSet,
        progress: Progress,
        rivals: Sequence[Candidate] = (),
        *,
        until: float = math.inf,
    ) -> None:
        """Confirm a candidate's speedup by Stein's two-stage procedure, over pairs of fresh processes.

        A candidate that fails here behaves differently than before, and is quarantined. Rivals run in every pair. They
        affect only their own comparison, unless ``until`` is set.

        A control runs as well: a second process of the reference. Its ratio to the first is known to be one, so their
        difference shows how noisy the machine is. If they surely differ, the whole confirmation is void.

        One process may have got memory that is slow to read, as in a search: once, its pair is timed anew.

        Args:
            until: deadline on the monotonic clock. After the first five process pairs none begins that would end later,
                and a void confirmation is tried again only if there is time for it. If there are rivals as well, they
                alone decide how many pairs are wanted, for an interval of half the usual width.

        Raises:
            MachineError: every try was void.
        """
        for _ in range(_CONFIRM_TRIES):
            began = monotonic()
            progress.samples = [sample for sample in progress.samples if sample.phase != "confirm"]
            against = Rivals(rivals, self._launcher.start_rival)
            values = self._process_pairs(candidate, check_set, progress, against, until)
            control = values.pop(CONTROL)
            bound, most = self._method.noise_bound, self._method.confirm_max_pairs
            strayed = statistics.stein_interval(control, most)
            if not statistics.disturbed(strayed, bound):
                pairs = max(len(found) for found in values.values())
                whole = {name: statistics.stein_interval(v, most) for name, v in values.items() if len(v) == pairs}
                raced = {against.sha256(role): whole.pop(role) for role in against.roles if role in whole}
                self._conclude(
                    check_set, progress, whole, processes=pairs, pairs=pairs, confirmed=True, noise_bound=bound
                )
                self._note_control(progress, control, strayed)
                self._note_rivals(progress, raced)
                self._floor(check_set, progress)
                return
            progress.artifacts["void confirmation"] = f"control ratio {strayed.ratios()[0]:.4f}"
            if 2 * monotonic() - began > until:
                break
        raise MachineError(
            f"{self._problem.id}: two processes of the same code were timed {abs(strayed.estimate):.1%} apart",
            hint="the machine is too busy for a confirmation; run it again when it is quieter",
        )

    def _process_pairs(
        self, candidate: Candidate, check_set: CheckSet, progress: Progress, rivals: Rivals, until: float
    ) -> dict[str, list[float]]:
        """The log-ratios of all process pairs, by role: baselines, rivals and the control."""
        values: dict[str, list[float]] = {}
        wanted, process, began = self._method.confirm_pairs, 0, monotonic()
        anew = False
        while process < wanted:
            if process >= statistics.FIRST_PROCESS_PAIRS and (monotonic() - began) / process > until - monotonic():
                break
            kept = len(progress.samples)
            try:
                found = self._process_pair(candidate, check_set, process, progress, rivals)
            except RivalFailed:
                del progress.samples[kept:]
                continue
            except Refused:
                if anew or not progress.read_times.refused:
                    raise
                del progress.samples[kept:]
                anew, progress.read_times = True, ReadTimes()
                continue
            for name, value in found.items():
                values.setdefault(name, []).append(value)
            process += 1
            if process == statistics.FIRST_PROCESS_PAIRS:
                raced = math.isfinite(until) and bool(rivals.roles)
                decide = [name for name in values if name != CONTROL and is_foreign(name) == raced]
                first = next((name for name in self._timed_baselines() if name in decide), "")
                whole = {name: values[name] for name in decide if len(values[name]) == process}
                target = self._method.target_half_width / (2 if raced else 1)
                most, bound = self._method.confirm_max_pairs, self._method.noise_bound
                needed = [
                    statistics.stein_confirmation(found, target, most, bound, decides=raced or name == first)
                    for name, found in whole.items()
                ]
                wanted = max([*needed, self._method.confirm_pairs])
        return values

    def _process_pair(
        self, candidate: Candidate, check_set: CheckSet, process: int, progress: Progress, rivals: Rivals
    ) -> dict[str, float]:
        starts = [functools.partial(self._launcher.start, candidate, check_set, "confirm", progress)]
        starts += [functools.partial(self._workers.twin, name, check_set) for name in (*self._twin_names(), CONTROL)]
        sides: list[Seat] = [*self._workers.start_all(starts)]
        side = sides[0]
        try:
            sides.extend(rivals.start(check_set, progress))
            with self._turns(sides, check_set, side, "confirm", progress, rivals) as turns:
                names = (*self._timed_baselines(), *rivals.roles)
                ratios: dict[str, list[float]] = {name: [] for name in (*names, CONTROL)}
                looked_at = secrets.randbelow(statistics.WINDOW_PAIRS_PER_PROCESS)
                for pair in range(statistics.WINDOW_PAIRS_PER_PROCESS):
                    if pair == looked_at:
                        self._look(turns, "confirm", progress)
                    turn = self._turn(turns, pair, process, "confirm", progress)
                    for name in names:
                        ratios[name].append(turn.claims[name])
                    control = math.log(turn.latency_ms["eager"] / turn.latency_ms[CONTROL])
                    ratios[CONTROL].append(control)
                    if "eager" in ratios:  # it ran in two processes: their geometric mean is less noisy
                        ratios["eager"][-1] -= control / 2.0
        finally:
            for started in sides:
                started.end()
        return {name: statistics.process_value(found) for name, found in ratios.items()}

    @contextlib.contextmanager
    def _turns(
        self, sides: list[Seat], check_set: CheckSet, side: Seat, stage: FailedStage, progress: Progress, rivals: Rivals
    ) -> Iterator[Turns]:
        """The clockwork's turns. Failures of the candidate, of a rival and of a twin have different consequences."""
        try:
            with (
                rivals.watched(progress),
                self._clockwork.turns(sides, check_set, progress.read_times, progress.redraws) as turns,
            ):
                yield turns
        except WorkerFailed as failed:
            refuse(self._problem.id, failed, side, stage, progress)
        finally:
            for name, reason in self._clockwork.unavailable.items():
                progress.artifacts[f"baseline {name}"] = reason
            for rule, text in self._clockwork.remarks.items():
                progress.note_once(rule, text)

    def _turn(
        self, turns: Turns, pair: int, process: int, phase: Literal["search", "confirm"], progress: Progress
    ) -> Turn:
        turn = turns.turn(pair, process, phase)
        progress.samples += turn.samples
        if turn.wrong is not None:
            status, reason = turn.wrong
            if phase == "confirm":
                raise Refused(Status.QUARANTINED, "confirm", reason)
            raise Refused(status, "time", reason)
        return turn

    def _look(self, turns: Turns, stage: FailedStage, progress: Progress) -> None:
        """Refuse a candidate whose own kernels do less of the work than in the check. Two looks must agree."""
        evidence = progress.evidence
        if evidence is None or evidence.share is None:
            return
        for _ in range(_LOOKS_AT_OWN):
            share = self._clock.share_between(turns, evidence.is_settled_while_timed)
            if share is None:
                return
            pretence, shortfall = evidence.objection_while_timed(share), evidence.shortfall_while_timed(share)
            if not (pretence or shortfall):
                return
        if pretence:
            raise Refused(Status.REWARD_HACK if stage == "time" else Status.QUARANTINED, stage, pretence)
        if progress.eligible:
            progress.fall_short(stage, shortfall)

    def _floor(self, check_set: CheckSet, progress: Progress) -> None:
        """Refuse a time that is shorter than reading the inputs takes.

        Noise only adds to a time, so the median decides. On a disturbed machine the upper bound of an idle kernel may
        lie above the floor.
        """
        assert progress.timing is not None
        latency_ms, share = progress.timing.latency_ms.median, FLOOR_SHARE / self._settings.threads
        for attempt in range(1 + _FLOOR_TRIES):
            floor_ms = share * self._clockwork.floor_ms(check_set, anew=attempt > 0)
            if latency_ms >= floor_ms:
                return
        reason = f"{latency_ms:.3g} ms is less than reading the inputs takes ({floor_ms:.3g} ms)"
        progress.timing = None
        raise Refused(Status.QUARANTINED, "floor", reason)

    def _conclude(
        self,
        check_set: CheckSet,
        progress: Progress,
        intervals: Mapping[str, statistics.LogInterval],
        *,
        processes: int,
        pairs: int,
        confirmed: bool,
        noise_bound: float,
    ) -> None:
        if not intervals:
            why = "; ".join(f"{name}: {reason}" for name, reason in self._clockwork.unavailable.items())
            raise MachineError(
                f"no baseline of {self._problem.id} could be timed: {why}", hint="add the baseline eager"
            )
        eager_ms = float(np.median([s.latency_ms for s in progress.samples if s.role == "eager"]))
        timeable = eager_ms >= (_TIMEABLE_SLOWLY_MS if _does_little(check_set) else _TIMEABLE_MS)
        if not timeable:
            took = f"the reference takes {1000 * eager_ms:.2g} us: overhead decides, and nothing is called faster"
            progress.note(TOO_SMALL_TO_TIME, took)
        speedup, least = {}, math.log1p(noise_bound)
        for name, interval in intervals.items():
            median, low, high = interval.ratios()
            faster = interval.low > least if confirmed else statistics.surely_faster(interval, least)
            speedup[name] = Speedup(median=median, low=low, high=high, faster=faster and timeable)
        own = [s.latency_ms for s in progress.samples if s.role == "candidate"]
        median, low, high = statistics.latency_interval(own)
        progress.timing = Timing(
            latency_ms=Interval(median=median, low=low, high=high),
            processes=processes,
            pairs=pairs,
            threads=self._settings.threads,
            confirmed=confirmed and self._clock.may_confirm,
            noise_bound=noise_bound,
            speedup=speedup,
        )

    def _timed_baselines(self) -> tuple[str, ...]:
        return tuple(name for name in self._baselines if name not in self._clockwork.unavailable)

    def _twin_names(self) -> tuple[str, ...]:
        """The baselines to run. Eager is always one of them, since timed outputs are compared with its outputs."""
        return ("eager", *(name for name in self._timed_baselines() if name != "eager"))


def _does_little(check_set: CheckSet) -> bool:
    """Whether a call's work takes less than a microsecond, however long the reference takes."""
    return check_set.variants[0].bytes_moved < _LITTLE_BYTES and check_set.flops < _LITTLE_FLOPS
