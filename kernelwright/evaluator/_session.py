"""One problem being judged: its check set, its live twins, and the stages that a candidate goes through."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import numpy as np

from kernelwright.errors import MachineError
from kernelwright.evaluator import _screen as screening
from kernelwright.evaluator import _statistics as statistics
from kernelwright.evaluator import _truth as truth
from kernelwright.evaluator import _wire as wire
from kernelwright.evaluator._client import Failure, WorkerFailed
from kernelwright.evaluator._clock import Door
from kernelwright.evaluator._knobs import effective_source
from kernelwright.evaluator._timing import Bank, Pool, Side, Turns, pinned, plan
from kernelwright.records import (
    Candidate,
    Correctness,
    DeviceClass,
    Evaluation,
    FailedStage,
    Finding,
    Interval,
    Problem,
    Speedup,
    Stage,
    Status,
    Timing,
    TimingSample,
    Verdict,
)
from kernelwright.sandbox import SharedMemory

if TYPE_CHECKING:
    from kernelwright.evaluator._referee import Referee

_LOAD_TIMEOUT_S = 60.0
_COMPILE_TIMEOUT_S = 180.0
_WARM_CALLS = 8
_CONFIRM_WINDOWS = statistics.WINDOW_PAIRS_PER_PROCESS


class Refused(Exception):
    """A candidate's way ends here; carries the status and what to say."""

    def __init__(self, status: Status, stage: FailedStage, reason: str) -> None:
        super().__init__(reason)
        self.status, self.stage, self.reason = status, stage, reason


class _Progress:
    """What is known of a candidate so far; becomes its verdict."""

    def __init__(self) -> None:
        self.stage: Stage | None = None
        self.findings: tuple[Finding, ...] = ()
        self.correctness: Correctness | None = None
        self.timing: Timing | None = None
        self.samples: list[TimingSample] = []
        self.seconds: dict[str, float] = {}
        self.artifacts: dict[str, str] = {}
        self.layers: tuple[str, ...] = ()

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Book the time spent inside on ``name``."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started


class _Checked(NamedTuple):
    """How the whole check went."""

    correctness: Correctness
    wrong: tuple[Status, str] | None


class ProblemSession:
    """Judges candidates of one problem. A context manager; made by :meth:`Referee.open`."""

    def __init__(
        self,
        referee: Referee,
        problem: Problem,
        *,
        baselines: Sequence[str],
        on_stage: Callable[[str], None] | None = None,
    ) -> None:
        self.problem = problem
        self.baseline_ms: dict[str, float] = {}
        self._referee = referee
        self._settings = referee.settings
        self._baselines = tuple(baselines)
        self._on_stage = on_stage or (lambda stage: None)
        self._check_sets: dict[DeviceClass, truth.CheckSet] = {}
        self._twins: dict[str, Side] = {}
        self._unavailable: dict[str, str] = {}
        self._banks: dict[str, Bank] = {}

    def __enter__(self) -> ProblemSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the twins."""
        twins, self._twins = self._twins, {}
        for side in twins.values():
            _end(side)

    def call(self, entry: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Run a function over the problem's code in a sandboxed worker of its own; see :meth:`Sandbox.call`."""
        limits = self._referee.limits(wall_s=self._settings.capture_timeout_s, allow_exec=True)
        return self._referee.sandbox.call(entry, payload, limits=limits)

    def prepare(self, device_class: DeviceClass = "cpu") -> truth.CheckSet:
        """The check set, made on first use.

        Raises:
            InvalidReferenceError: the reference cannot be used.
        """
        if device_class not in self._check_sets:
            self._on_stage("reference")
            client = self._referee.worker("kernelwright.evaluator._oracle:main", name="oracle")
            door = Door(self._referee.door_library)
            try:
                self._referee.load(client, door, self.problem.source, role="reference", mode=self.problem.meta.mode)
                oracle = truth.OracleSession(client, self.problem, self._settings.check_trials)
                self._check_sets[device_class] = oracle.check_set(device_class)
            except WorkerFailed as failed:
                raise truth.reference_error(self.problem, failed) from None
            finally:
                client.close()
                door.close()
        return self._check_sets[device_class]

    def judge(
        self, candidate: Candidate, *, control: bool = False, time: bool = True, confirm: bool = False
    ) -> Evaluation:
        """Take a candidate through all stages; whatever it does wrong is a status of the verdict.

        Args:
            control: the file is no candidate (the reference itself, a library call): own kernels are not asked for.
            time: time it after the check (backend ``cpp`` only; nothing else runs on this device).
            confirm: time it in fresh process pairs instead; what is published is always such a confirmation.

        Raises:
            InvalidReferenceError: the reference cannot be used.
            MachineError: a fault of ours or of the machine; nothing is known about the candidate.
        """
        progress = _Progress()
        status, failed_stage, reason = Status.PASSED, None, ""
        try:
            with self._referee.lane():
                timed = time and candidate.backend == "cpp"
                self._run(candidate, progress, control=control, timed=timed, confirm=confirm)
        except Refused as refused:
            status, failed_stage, reason = refused.status, refused.stage, refused.reason
        verdict = Verdict(
            candidate=candidate.sha256,
            problem=self.problem.id,
            backend=candidate.backend,
            control=control,
            stage=progress.stage,
            failed_stage=failed_stage,
            status=status,
            reason=reason,
            findings=progress.findings,
            correctness=progress.correctness,
            timing=progress.timing,
            environment=self._referee.environment.id,
            sandbox=progress.layers or self._referee.sandbox.layers,
            seconds={name: round(seconds, 4) for name, seconds in progress.seconds.items()},
        )
        return Evaluation(
            candidate=candidate,
            verdict=verdict,
            samples=tuple(progress.samples),
            environment=self._referee.environment,
            artifacts=progress.artifacts,
        )

    # ------------------------------------------------------------------------------------------ stages

    def _run(self, candidate: Candidate, progress: _Progress, *, control: bool, timed: bool, confirm: bool) -> None:
        with progress.timed("screen"):
            self._screen(candidate, progress, control=control)
        check_set = self.prepare("interpreter" if candidate.backend == "triton" else "cpu")
        side: Side | None = None
        try:
            with progress.timed("build"):
                self._on_stage("build")
                side = self._start_candidate(candidate, progress)
                progress.layers = side.client.worker.layers
                self._construct(side, check_set.variants[0], progress)
                progress.stage = Stage.COMPILED
            with progress.timed("check"):
                self._on_stage("check")
                checked = self._check(side, check_set, progress)
                progress.correctness = checked.correctness
                if checked.wrong is not None:
                    raise Refused(checked.wrong[0], "check", checked.wrong[1])
                progress.stage = Stage.CHECKED
            if timed and not confirm:
                with progress.timed("time"):
                    self._on_stage("time")
                    self._time(side, check_set, progress)
                    progress.stage = Stage.TIMED
        finally:
            if side is not None:
                if tail := side.client.tail():
                    progress.artifacts["worker output"] = tail
                _end(side)
        if timed and confirm:
            with progress.timed("confirm"):
                self._on_stage("confirm")
                self._confirm(candidate, check_set, progress)
                progress.stage = Stage.CONFIRMED

    def _screen(self, candidate: Candidate, progress: _Progress, *, control: bool) -> None:
        result = screening.screen(candidate.source, candidate.backend, control)
        progress.findings = result.findings
        if result.status is not None:
            raise Refused(result.status, "screen", result.reason)
        progress.stage = Stage.SCREENED

    def _start_candidate(self, candidate: Candidate, progress: _Progress) -> Side:
        try:
            source = effective_source(candidate)
        except ValueError as error:
            raise Refused(Status.RUNTIME_ERROR, "build", str(error)) from None
        triton = candidate.backend == "triton"
        side = self._start("candidate", builds=True, env={"TRITON_INTERPRET": "1"} if triton else {})
        try:
            mode = self.problem.meta.mode
            self._referee.load(side.client, side.door, source, role="candidate", mode=mode, triton=triton)
        except WorkerFailed as failed:
            try:
                self._refuse(failed, side, "build", progress)
            finally:
                _end(side)
        return side

    def _construct(self, side: Side, variant: truth.Variant, progress: _Progress, weights: int = 0) -> None:
        try:
            self._set_up(side, variant, weights)
        except WorkerFailed as failed:
            self._refuse(failed, side, "build" if progress.stage is Stage.SCREENED else "check", progress)
        self._note_builds(side, progress)

    def _set_up(self, side: Side, variant: truth.Variant, weights: int) -> None:
        """Construct a worker's module for one variant and give it its weights."""
        side.client.request("construct", timeout_s=_LOAD_TIMEOUT_S, init=variant.init, variant=variant.constants)
        self._give_weights(side, variant, weights)

    def _give_weights(self, side: Side, variant: truth.Variant, weights: int) -> None:
        if not variant.state:
            return
        memory = SharedMemory.create(max(variant.state_bytes, 64), "weights")
        try:
            np.frombuffer(memory.view, dtype=np.uint8)[:] = variant.weights[weights]
            memory.seal()
            side.client.request(
                "weights",
                timeout_s=_LOAD_TIMEOUT_S,
                fds=[memory.fd],
                size=memory.size,
                state=[wire.spec_to_json(s) for s in variant.state],
                parameters=variant.parameters,
            )
        finally:
            memory.close()

    def _check(self, side: Side, check_set: truth.CheckSet, progress: _Progress) -> _Checked:
        """All trials of all variants through the door; stops at the first variant that is wrong."""
        worst = truth.Judgement(None, "", 0.0, 0.0, True)
        trials = 0
        for i, (variant, group) in enumerate(zip(check_set.variants, check_set.trials, strict=True)):
            if i:
                self._construct(side, variant, progress)
            for weights in sorted({trial.weights for trial in group}):
                if weights:
                    try:
                        self._give_weights(side, variant, weights)
                    except WorkerFailed as failed:
                        self._refuse(failed, side, "check", progress)
                chosen = [t for t in group if t.weights == weights]
                found = self._check_trials(side, variant, group, chosen, progress)
                trials += len(chosen)
                worst = _worse(worst, found)
                if worst.status is not None:
                    break
            if worst.status is not None:
                break
        finite = worst.load if math.isfinite(worst.load) else 1e300
        correctness = Correctness(
            trials=trials,
            variants=len(check_set.variants),
            check_set=check_set.id,
            max_error=finite * worst.tolerance,
            error_budget=worst.tolerance,
            kernelbench_allclose=worst.allclose,
        )
        return _Checked(correctness, None if worst.status is None else (worst.status, worst.reason))

    def _check_trials(
        self,
        side: Side,
        variant: truth.Variant,
        group: Sequence[truth.Trial],
        chosen: Sequence[truth.Trial],
        progress: _Progress,
    ) -> truth.Judgement:
        """Reveal every chosen trial twice in random order, read all outputs, compare."""
        memory = SharedMemory.create(variant.slot_bytes * len(chosen), "trials")
        try:
            slots = np.frombuffer(memory.view, dtype=np.uint8).reshape(len(chosen), variant.slot_bytes)
            for slot, trial in zip(slots, chosen, strict=True):
                slot[:] = trial.data
            del slots
            memory.seal()
            order = np.random.default_rng().permutation(np.repeat(np.arange(len(chosen)), 2))
            with pinned(self._referee.own_cpu):
                window = self._visit(side, memory, variant, len(chosen), order)
        except WorkerFailed as failed:
            self._refuse(failed, side, "check", progress)
        finally:
            memory.close()
        return self._compare(variant, group, chosen, order, window.outputs)

    def _visit(self, side: Side, memory: SharedMemory, variant: truth.Variant, count: int, order: np.ndarray) -> Any:
        client = side.client
        client.request(
            "slots",
            timeout_s=_LOAD_TIMEOUT_S,
            fds=[memory.fd],
            size=memory.size,
            count=count,
            stride=variant.slot_bytes,
            inputs=variant.inputs_json(),
        )
        client.send("enter", yielding=side.door.yielding)
        window = side.door.window(
            client, order, np.arange(len(order)), variant.capacity(), call_timeout_s=self._settings.call_timeout_s
        )
        side.door.leave()
        client.reply("enter", timeout_s=self._settings.call_timeout_s)
        return window

    def _compare(
        self,
        variant: truth.Variant,
        group: Sequence[truth.Trial],
        chosen: Sequence[truth.Trial],
        order: np.ndarray,
        outputs: Mapping[int, Any],
    ) -> truth.Judgement:
        worst = truth.Judgement(None, "", 0.0, 0.0, True)
        decoded: dict[int, list[np.ndarray]] = {}
        for call, claims in outputs.items():
            trial = chosen[int(order[call])]
            found, decoded[int(order[call])] = truth.judge_trial(
                trial, variant, claims, self.problem.meta.tolerance.scale
            )
            worst = _worse(worst, found)
            if worst.status is not None:
                return worst
        places = {id(trial): k for k, trial in enumerate(chosen)}
        reduced = self.problem.meta.tolerance.reduced_precision
        for k, trial in enumerate(chosen):
            if trial.partner is None or reduced:
                continue
            partner = group[trial.partner]
            reason = truth.judge_probe(trial, partner, decoded[k], decoded[places[id(partner)]])
            if reason:
                return worst._replace(status=Status.INCORRECT_NUMERICAL, reason=reason)
        return worst

    # ------------------------------------------------------------------------------------------ timing

    def _time(self, side: Side, check_set: truth.CheckSet, progress: _Progress) -> None:
        """The search's interval: turns of candidate and baselines until every comparison is decided."""
        sides = [side, *self._live_twins(check_set)]
        tests: dict[str, statistics.SequentialTest] = {}
        pair = 0
        with self._turns(sides, check_set, progress) as turns:
            for name in self._timed_baselines():
                tests[name] = statistics.SequentialTest(
                    noise_bound=self._settings.noise_bound,
                    looks=self._settings.looks,
                    target_half_width=self._settings.target_half_width,
                )
            while any(test.decision is None for test in tests.values()):
                latency = self._turn(turns, side, pair, 0, "search", "time", progress)
                for name, test in tests.items():
                    test.add(math.log(latency[name] / latency["candidate"]))
                pair += 1
        intervals = {name: test.interval() for name, test in tests.items()}
        self._conclude(progress, intervals, processes=1, pairs=pair, confirmed=False)

    def _confirm(self, candidate: Candidate, check_set: truth.CheckSet, progress: _Progress) -> None:
        """Stein's two stages over pairs of fresh processes; a candidate that fails here was not what it seemed."""
        values: dict[str, list[float]] = {}
        wanted, process = self._settings.confirm_pairs, 0
        while process < wanted:
            for name, value in self._process_pair(candidate, check_set, process, progress).items():
                values.setdefault(name, []).append(value)
            process += 1
            if process == statistics.FIRST_PROCESS_PAIRS:
                needed = [statistics.stein_confirmation(v, self._settings.target_half_width) for v in values.values()]
                wanted = min(max(needed), self._settings.confirm_max_pairs)
        intervals = {name: statistics.stein_interval(found) for name, found in values.items()}
        self._conclude(progress, intervals, processes=process, pairs=process, confirmed=True)

    def _process_pair(
        self, candidate: Candidate, check_set: truth.CheckSet, process: int, progress: _Progress
    ) -> dict[str, float]:
        sides: list[Side] = []
        try:
            side = self._start_candidate(candidate, progress)
            sides.append(side)
            self._construct(side, check_set.variants[0], progress)
            for name in self._twin_names():
                sides.append(self._start_twin(name, check_set))
            with self._turns(sides, check_set, progress) as turns:
                ratios: dict[str, list[float]] = {name: [] for name in self._timed_baselines()}
                for pair in range(_CONFIRM_WINDOWS):
                    latency = self._turn(turns, side, pair, process, "confirm", "confirm", progress)
                    for name, found in ratios.items():
                        found.append(math.log(latency[name] / latency["candidate"]))
        finally:
            for side in sides:
                _end(side)
        return {name: statistics.process_value(found) for name, found in ratios.items()}

    def _turn(
        self,
        turns: Turns,
        side: Side,
        pair: int,
        process: int,
        phase: Literal["search", "confirm"],
        stage: FailedStage,
        progress: _Progress,
    ) -> dict[str, float]:
        try:
            turn = turns.turn(pair, process, phase)
        except WorkerFailed as failed:
            self._refuse(failed, side, stage, progress)
        progress.samples += turn.samples
        if turn.wrong is not None:
            status = Status.QUARANTINED if stage == "confirm" else turn.wrong[0]
            raise Refused(status, stage, turn.wrong[1])
        return turn.latency_ms

    @contextlib.contextmanager
    def _turns(self, sides: list[Side], check_set: truth.CheckSet, progress: _Progress) -> Iterator[Turns]:
        """Map a fresh pool into all sides, warm them up, freeze them, and hand out turns.

        A ``torch.compile`` baseline that does not work on this problem is left out, and named in the artifacts.
        """
        variant, settings = check_set.variants[0], self._settings
        bank = self._bank(check_set)
        pool = Pool(variant, bank, _WARM_CALLS)
        try:
            with pinned(self._referee.own_cpu):
                null_ms = self._referee.null_ms()
                means = self._first_calls(sides, pool, progress)
                plan_ = plan(min(means), max(means), settings.window_ms, variant.slot_bytes, settings.pool_bytes)
                pool.close()
                pool = Pool(variant, bank, plan_.slots)
                for side in sides:
                    self._guarded_warm_up(side, pool, progress, stay=True)
                truths = check_set.trials[0][0]
                yield Turns(
                    sides,
                    pool,
                    plan_,
                    [(t.scale, truths.reduction) for t in truths.truths],
                    null_ms=null_ms,
                    call_timeout_s=settings.call_timeout_s,
                    tolerance_scale=self.problem.meta.tolerance.scale,
                )
        finally:
            pool.close()
            self._call_back(sides)

    def _bank(self, check_set: truth.CheckSet) -> Bank:
        if check_set.id not in self._banks:
            self._banks[check_set.id] = Bank(check_set.variants[0], check_set)
        return self._banks[check_set.id]

    def _first_calls(self, sides: list[Side], pool: Pool, progress: _Progress) -> list[float]:
        """The first calls of all sides (torch.compile compiles now); mean latency in ms of each."""
        means = []
        for side in list(sides):
            try:
                means.append(self._guarded_warm_up(side, pool, progress))
            except _BaselineFailed as failed:
                self._unavailable[side.name] = str(failed)
                progress.artifacts[f"baseline {side.name}"] = str(failed)
                sides.remove(side)
                _end(self._twins.pop(side.name, side))
        return means

    def _guarded_warm_up(self, side: Side, pool: Pool, progress: _Progress, *, stay: bool = False) -> float:
        try:
            return self._warm_up(side, pool, stay=stay)
        except WorkerFailed as failed:
            if side.name.startswith("compile"):
                raise _BaselineFailed(failed.failure.message) from None
            self._refuse(failed, side, "time", progress)

    def _warm_up(self, side: Side, pool: Pool, *, stay: bool = False) -> float:
        """A few calls on the pool; returns the mean latency in ms of the last half. ``stay``: leave it frozen inside."""
        client, variant = side.client, pool.variant
        patience = _COMPILE_TIMEOUT_S if side.name.startswith("compile") else self._settings.call_timeout_s
        if client.worker.alive():
            client.worker.thaw()
        client.request(
            "slots",
            timeout_s=_LOAD_TIMEOUT_S,
            fds=[pool.memory.fd],
            size=pool.memory.size,
            count=pool.slots,
            stride=pool.stride,
            inputs=variant.inputs_json(),
        )
        client.send("enter", yielding=side.door.yielding)
        order = np.arange(_WARM_CALLS) % pool.slots
        window = side.door.window(client, order, [], variant.capacity(), call_timeout_s=patience)
        if stay:
            client.worker.freeze()
        else:
            side.door.leave()
            client.reply("enter", timeout_s=self._settings.call_timeout_s)
        return float(np.median(window.durations_ns[_WARM_CALLS // 2 :])) / 1e6

    def _call_back(self, sides: Sequence[Side]) -> None:
        """Out of the door and back to the socket, so that a twin can serve again; one that cannot is ended."""
        for side in sides:
            if not side.client.worker.alive():
                continue
            try:
                side.client.worker.thaw()
                side.door.leave()
                side.client.reply("enter", timeout_s=self._settings.call_timeout_s)
            except WorkerFailed:
                side.client.close()

    def _conclude(
        self,
        progress: _Progress,
        intervals: Mapping[str, statistics.LogInterval],
        *,
        processes: int,
        pairs: int,
        confirmed: bool,
    ) -> None:
        bound = math.log1p(self._settings.noise_bound)
        speedup = {}
        for name, interval in intervals.items():
            median, low, high = interval.ratios()
            speedup[name] = Speedup(median=median, low=low, high=high, faster=interval.low > bound)
        median, low, high = statistics.latency_interval(
            [s.latency_ms for s in progress.samples if s.role == "candidate"]
        )
        for name in intervals:
            self.baseline_ms[name] = float(np.median([s.latency_ms for s in progress.samples if s.role == name]))
        progress.timing = Timing(
            latency_ms=Interval(median=median, low=low, high=high),
            processes=processes,
            pairs=pairs,
            threads=self._settings.threads,
            confirmed=confirmed,
            noise_bound=self._settings.noise_bound,
            speedup=speedup,
        )

    # ------------------------------------------------------------------------------------------ workers

    def _twin_names(self) -> tuple[str, ...]:
        """Baselines to run; the eager reference is always there, since timed outputs are compared with its own."""
        return ("eager", *(name for name in self._timed_baselines() if name != "eager"))

    def _timed_baselines(self) -> tuple[str, ...]:
        return tuple(name for name in self._baselines if name not in self._unavailable)

    def _live_twins(self, check_set: truth.CheckSet) -> list[Side]:
        for name in self._twin_names():
            side = self._twins.get(name)
            if side is None or not side.client.worker.alive():
                if side is not None:
                    _end(side)
                self._twins[name] = self._start_twin(name, check_set)
        return [self._twins[name] for name in self._twin_names()]

    def _start_twin(self, name: str, check_set: truth.CheckSet) -> Side:
        """The reference's own worker for a baseline, set up with the first variant and weights."""
        if name != "eager":
            self._on_stage(f"baseline {name}")
        side = self._start(name, builds=False, allow_exec=name != "eager")
        try:
            self._referee.load(
                side.client, side.door, self.problem.source, role="reference", mode=self.problem.meta.mode
            )
            self._set_up(side, check_set.variants[0], 0)
            if name != "eager":
                mode = name.removeprefix("compile").removeprefix("-") or "default"
                side.client.request("compile", timeout_s=_LOAD_TIMEOUT_S, mode=mode)
        except WorkerFailed as failed:
            _end(side)
            raise truth.reference_error(self.problem, failed) from None
        return side

    def _start(
        self, name: str, *, builds: bool, allow_exec: bool = False, env: Mapping[str, str] | None = None
    ) -> Side:
        door = Door(self._referee.door_library)
        try:
            client = self._referee.worker(
                f"kernelwright.evaluator.{'_compiler' if allow_exec else '_worker'}:main",
                name=name,
                builds=builds,
                allow_exec=allow_exec,
                env=env,
                inductor_cache=self.problem.sha256 if allow_exec else None,
            )
        except BaseException:
            door.close()
            raise
        return Side(name, client, door)

    def _note_builds(self, side: Side, progress: _Progress) -> None:
        messages = [o.log for o in side.client.outcomes if o.log]
        if messages:
            progress.artifacts["compiler"] = "\n".join(messages)[:16_000]
        failed = [o for o in side.client.outcomes if o.product is None]
        if failed:
            first = next((line for line in failed[0].log.splitlines() if "error" in line), failed[0].log[:200])
            reason = f"the build failed: {first.strip()[:400]}"
            raise Refused(Status.TIMEOUT if failed[0].problem == "timeout" else Status.COMPILE_ERROR, "build", reason)

    def _refuse(self, failed: WorkerFailed, side: Side, stage: FailedStage, progress: _Progress) -> NoReturn:
        """Turn what went wrong with a candidate's worker into its status; a twin's failure is an error of the machine."""
        if failed.worker != "candidate":
            raise MachineError(
                f"the worker of baseline {failed.worker!r} failed while {self.problem.id} was timed: "
                f"{failed.failure.message}",
                hint="run it again; if it stays so, the reference needs more memory or time than the limits allow",
            )
        if tail := side.client.tail():
            progress.artifacts["worker output"] = tail
        self._note_builds(side, progress)
        status, reason = status_of(failed.failure)
        raise Refused(Status.QUARANTINED if stage == "confirm" else status, stage, reason)


class _BaselineFailed(Exception):
    """A torch.compile baseline does not work on this problem."""


def status_of(failure: Failure) -> tuple[Status, str]:
    """The status that a failure of a candidate's worker is."""
    if failure.kind == "timeout":
        return Status.TIMEOUT, failure.message
    if failure.kind == "fault" and failure.phase == "shape":
        return Status.INCORRECT_SHAPE, failure.message
    if failure.kind == "fault" and failure.message.startswith("NotCheckable"):
        return Status.UNCHECKED, failure.message
    where = f" ({failure.phase})" if failure.kind == "fault" else ""
    line = f" at line {failure.line}" if failure.line is not None else ""
    return Status.RUNTIME_ERROR, f"{failure.message}{line}{where}"


def _worse(a: truth.Judgement, b: truth.Judgement) -> truth.Judgement:
    worse = b if (b.status is not None and a.status is None) or b.load > a.load or a.tolerance == 0.0 else a
    return worse._replace(allclose=a.allclose and b.allclose)


def _end(side: Side) -> None:
    side.client.close()
    side.door.close()


def lane_path(cache_dir: os.PathLike[str]) -> str:
    """The lock that one timing at a time holds on this machine."""
    return os.path.join(cache_dir, "cpu-lane.lock")
