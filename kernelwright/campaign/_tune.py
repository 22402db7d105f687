"""Tuning as a run: the search proposes knob settings of one kernel, the referee judges them, the store keeps results.

The state of the search follows from the run's rows, as in other runs. Each evaluation times one setting beside the best
setting so far. A few settings are built side by side before any of them is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernelwright.campaign._costs import BASELINE
from kernelwright.campaign._driver import Driver
from kernelwright.campaign._locks import RunLock
from kernelwright.campaign._results import CampaignEvent, RunResult, RunStatus
from kernelwright.campaign._tune_job import TuneJob, tuning_of
from kernelwright.campaign.runs import ENDED, problems_of
from kernelwright.campaign.stopping import DeviceSeconds, StopWatch
from kernelwright.campaign.tune_results import TunePlan, TuneResult
from kernelwright.config import NAMES, Settings
from kernelwright.errors import UsageError
from kernelwright.pool import LOCAL
from kernelwright.records import Candidate, Problem, RunConfig

if TYPE_CHECKING:
    from kernelwright.store import Store

RACE_PAIRS = 48  # most pairs for one setting, if the search's own limit is higher: close settings are equally good
LOOKS = (8, 16)  # looks at the baseline, where precision matters little: races decide and have looks of their own


class Tuner(Driver):
    """Tunes kernels and keeps everything in the store; see :class:`Driver`. ``clock``: monotonic seconds.

    A resumed run uses its original settings with the paths of the current ones.
    """

    def __init__(
        self, settings: Settings, store: Store, *, clock: Callable[[], float] = time.monotonic, **more: Any
    ) -> None:
        super().__init__(settings, store, **more)
        self._clock = clock

    def run(self, candidate: Candidate, problem: Problem, plan: TunePlan) -> TuneResult:
        """Tune a candidate.

        Raises:
            UsageError: the candidate declares no knobs, or the sampler cannot search them; no run was created.
            SandboxError, MissingToolError, MachineError: the candidate cannot be judged or timed here.
            InvalidReferenceError: the problem cannot be judged.
        """
        started = self._clock()
        default = tuning_of(candidate, plan).default
        method = self._settings.measurement
        looks = LOOKS if self._settings.origin("measurement") == "default" else method.looks
        settings = self._settings.with_values(
            "run tune",
            baselines=(BASELINE,),
            measurement=method.with_values(race_pairs=min(method.race_pairs, RACE_PAIRS), looks=looks),
        )
        config = RunConfig(
            problems=(problem.id,),
            coder="tune",
            judge="none",
            backend=candidate.backend,
            rounds=plan.max_evaluations,
            max_minutes=plan.max_seconds / 60,
            sandbox=settings.sandbox,
            threads=settings.threads,
            baselines=(BASELINE,),
            recipe="tune",
            tune={**plan.model_dump(mode="json"), "candidate": default.sha256},
            suite_dirs=tuple(str(folder) for folder in settings.suite_dirs),
            settings=settings.model_dump(mode="json"),
        )
        if settings.pool != LOCAL:
            raise UsageError("tune times kernels on this machine", hint="--set pool=local")
        with self._open_referee(settings) as referee:
            run_id = self._store.create_run(config, [problem])
            self._store.record_candidate(default)
            with RunLock(self._store.path, run_id):
                return self._tune(run_id, config, problem, referee, started, 0.0)

    def resume(self, run_id: str, *, max_minutes: float | None = None) -> TuneResult:
        """Continue a run that was stopped or killed. No setting is judged twice.

        Args:
            max_minutes: a new time budget for the whole run, including the time already spent.

        Raises:
            UsageError: no such run, it is not a tuning run, it has ended, or another process drives it.
        """
        started = self._clock()
        stored = self._store.run(run_id)
        if stored.config.tune is None:
            raise UsageError(f"run {stored.id} is not a tuning run", hint=f"'kernelwright resume {stored.id}'")
        if stored.status in ENDED:
            raise UsageError(
                f"run {stored.id} is {stored.status}", hint=f"'kernelwright runs show {stored.id}' shows its result"
            )
        config = stored.config
        if max_minutes is not None:
            config = config.model_copy(update={"max_minutes": max_minutes})
        settings = self._settings.as_recorded("run tune", config.settings)
        (problem,) = problems_of(self._store, stored.id)
        with RunLock(self._store.path, stored.id), self._open_referee(settings) as referee:
            self._store.set_run_config(stored.id, config)
            return self._tune(stored.id, config, problem, referee, started, stored.seconds)

    def _tune(
        self, run_id: str, config: RunConfig, problem: Problem, referee: Any, started: float, spent_s: float
    ) -> TuneResult:
        plan = TunePlan.model_validate(config.tune)
        spent = DeviceSeconds(self._store, run_id)
        watch = StopWatch(asked=lambda: self._asked_to_stop(run_id, config, spent))
        limit_s = (config.max_minutes or plan.max_seconds / 60) * 60 - spent_s
        self._store.set_run_status(run_id, "running")
        self._store.set_problem_state(run_id, problem.id, "running")
        job = TuneJob(
            run_id=run_id,
            problem=problem,
            given=self._store.candidate(plan.candidate, problem=problem.id),
            plan=plan,
            store=self._store,
            watch=watch,
            left_s=lambda: limit_s - (self._clock() - started),
            tell=self._tell,
            noise=self._settings.measurement.search_noise_bound,
            least=self._settings.measurement.race_noise_bound,
            race_pairs=int(NAMES.recorded(config.settings).get("measurement.race_pairs", RACE_PAIRS)),
            environment=referee.environment_for(config.backend).id,
        )
        status: RunStatus = "failed"
        try:
            with self._signals_to(watch):
                with referee.open(
                    problem,
                    backend=config.backend,
                    baselines=config.baselines,
                    on_stage=lambda stage: self._tell(CampaignEvent("stage", problem.id, {"stage": stage})),
                    archive=self._store.archive(problem),
                ) as session:
                    result = job.run(session)
            result = result.model_copy(update={"seconds": spent_s + self._clock() - started})
            status = result.status
            if status == "finished":
                row = _row(result, self._store)
                self._store.set_problem_state(run_id, problem.id, row.state, row.model_dump_json())
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            self._close(run_id, status, self._clock() - started)
        return result


def _row(result: TuneResult, store: Store) -> RunResult:
    """The winners' row of a finished run."""
    if result.evaluation is None:
        return RunResult(
            problem=result.problem, state="failed", rounds=result.judged, seconds=result.seconds, reason=result.reason
        )
    verdict = store.evaluation(result.evaluation).verdict
    return RunResult(
        problem=result.problem,
        state="done",
        candidate=verdict.candidate,
        evaluation=result.evaluation,
        stage=verdict.stage,
        status=verdict.status,
        confirmed=verdict.timing is not None and verdict.timing.confirmed,
        latency_ms=None if verdict.timing is None else verdict.timing.latency_ms,
        speedup={} if verdict.timing is None else dict(verdict.timing.speedup),
        own_kernel_label=verdict.own_kernel_label,
        eligible=verdict.eligible,
        rounds=result.judged,
        seconds=result.seconds,
        sandbox=verdict.sandbox,
        environment=verdict.environment,
        reason=result.summary,
    )
