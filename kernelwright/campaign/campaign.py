"""Many problems, one after the other: budgets, stops, resumption."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelwright.agents import coder_from_spec, judge_from_spec, verifier_from_spec
from kernelwright.agents.graph import open_checkpoints
from kernelwright.agents.llm import Limits, Models, absolute_spec, is_model
from kernelwright.campaign._driver import Driver
from kernelwright.campaign._lane import Lane
from kernelwright.campaign._locks import RunLock
from kernelwright.campaign._problem_job import ProblemJob, locate_checkpoints
from kernelwright.campaign._results import CampaignResult, RunResult, RunStatus
from kernelwright.campaign._run_roles import RunRoles
from kernelwright.campaign._schedule import Schedule
from kernelwright.campaign.memory import RunMemory
from kernelwright.campaign.recipe import load_recipe, planned_search
from kernelwright.campaign.searched import languages_of
from kernelwright.campaign.stopping import DeviceSeconds, StopWatch
from kernelwright.config import Settings
from kernelwright.datasets import LintRecords
from kernelwright.errors import UsageError
from kernelwright.evaluator import RefereeLike
from kernelwright.records import Problem, RunConfig

if TYPE_CHECKING:
    from kernelwright.store import Store

SECONDS_PER_MINUTE = 60.0
STATUS_OF_STOP: dict[str, RunStatus] = {
    "interrupted": "interrupted",
    "budget": "paused",
    "paused": "paused",
    "replies": "paused",
    "cancelled": "cancelled",
}
ENDED = frozenset({"finished", "cancelled"})
PARALLEL_WITH_MODELS = 8
BUDGETS = ("max_minutes", "max_cost_usd", "max_tokens", "max_device_seconds")


def run_config(settings: Settings, problems: Sequence[str]) -> RunConfig:
    """The configuration of a run with these settings. It records every setting, so a resume uses the same ones.

    Raises:
        UsageError: the recipe's search does not fit the backend or the models, or there are several models and the
            recipe has no search.
    """
    recipe = load_recipe(settings.recipe.name)
    coder, models = absolute_spec(settings.coder.model), tuple(map(absolute_spec, settings.models))
    search = planned_search(recipe, settings.backend, coder, models)
    return RunConfig(
        problems=tuple(problems),
        coder=coder,
        models=models,
        judge=absolute_spec(settings.judge.model),
        verifier=absolute_spec(settings.verifier.model),
        backend=settings.backend,
        rounds=settings.rounds,
        max_minutes=settings.max_minutes,
        max_cost_usd=settings.max_cost_usd,
        max_tokens=settings.max_tokens,
        max_device_seconds=settings.max_device_seconds,
        sandbox=settings.sandbox,
        threads=settings.threads,
        baselines=settings.baselines,
        recipe=settings.recipe.name,
        search=None if search is None else search.model_dump(mode="json"),
        suite_dirs=tuple(str(folder) for folder in settings.suite_dirs),
        settings=settings.model_dump(mode="json"),
    )


def settings_of(settings: Settings, config: RunConfig) -> Settings:
    """A run's recorded settings and budgets, with the paths of ``settings``."""
    budgets = {name: getattr(config, name) for name in BUDGETS}
    return settings.as_recorded(f"run {config.recipe}", {**config.settings, **budgets})


class Campaign(Driver):
    """Runs problems in order and keeps everything in the store; see :class:`Driver`.

    A resumed run uses the settings that it was started with, except for ``store``, ``cache_dir`` and the budget.
    """

    def run(self, problems: Sequence[Problem], *, every_variant: bool = False) -> CampaignResult:
        """Start a run.

        Args:
            every_variant: whether the problems are all shape variants of some problems. Variants that the lint finds
                too small to time are then skipped, except for the first variant of each problem.

        Raises:
            UsageError: no problem, one named twice, or an unknown coder, judge or verifier.
            SandboxError, MissingToolError: the job cannot run here; no run was created.
            StoreError: the store failed; finished work is kept in it.
        """
        ids = [problem.id for problem in problems]
        if not ids or len(set(ids)) != len(ids):
            raise UsageError("name at least one problem, and each one once", hint="'kernelwright problems list'")
        config = run_config(self._settings, ids).model_copy(update={"every_variant": every_variant})
        for spec in (config.coder, *config.models):
            coder_from_spec(spec, config.backend)
        judge_from_spec(config.judge), verifier_from_spec(config.verifier)
        with Models(self._settings, models_of(config)) as models, self._open_referee(self._settings) as referee:
            run_id = self._store.create_run(config, problems)
            with RunLock(self._store.path, run_id):
                return self._drive(_Run(run_id, config, self._settings, referee, models), problems, spent_s=0.0)

    def resume(self, run_id: str, **budgets: float | None) -> CampaignResult:
        """Continue a run that was interrupted, paused or killed. A finished evaluation is never repeated.

        Args:
            budgets: new budgets for the whole run, including what is already spent: ``max_minutes``,
                ``max_cost_usd``, ``max_tokens``, ``max_device_seconds``; None keeps the old one.

        Raises:
            UsageError: no such run, it has ended, or another process drives it.
        """
        stored = self._store.run(run_id)
        if stored.config.tune is not None:
            raise UsageError(f"run {stored.id} tunes one kernel", hint="kernelwright.campaign.Tuner resumes it")
        if stored.config.bench is not None:
            raise UsageError(f"run {stored.id} is a bench", hint="'kernelwright bench run NAME' goes on with it")
        if stored.status in ENDED:
            raise UsageError(
                f"run {stored.id} is {stored.status}", hint=f"'kernelwright runs show {stored.id}' shows its results"
            )
        config = stored.config.model_copy(update={name: most for name, most in budgets.items() if most is not None})
        settings = settings_of(self._settings, config)
        problems = problems_of(self._store, stored.id)
        with (
            RunLock(self._store.path, stored.id),
            Models(settings, models_of(config)) as models,
            self._open_referee(settings) as referee,
        ):
            self._store.set_run_config(stored.id, config)
            return self._drive(_Run(stored.id, config, settings, referee, models), problems, spent_s=stored.seconds)

    def _drive(self, run: _Run, problems: Sequence[Problem], spent_s: float) -> CampaignResult:
        config = run.config
        budget_s = None if config.max_minutes is None else config.max_minutes * SECONDS_PER_MINUTE - spent_s
        device_seconds = DeviceSeconds(self._store, run.id)
        watch = StopWatch(budget_s=budget_s, asked=lambda: self._asked_to_stop(run.id, config, device_seconds))
        self._store.set_run_status(run.id, "running")
        over = [row.problem for row in self.rows(run.id) if _is_over(row)]
        self._emit(
            "run-started",
            run=run.id,
            problems=[problem.id for problem in problems],
            rounds=config.rounds,
            done=len(over),
        )
        status: RunStatus = "failed"
        reason = ""
        try:
            reason = self._with_signals(watch, lambda: self._jobs(run, problems, watch))
            status = STATUS_OF_STOP.get(reason, "finished")
        except KeyboardInterrupt:
            status, reason = "interrupted", "interrupted"
        finally:
            self._close(run.id, status, watch.seconds)
        return CampaignResult(
            run_id=run.id,
            status=status,
            reason=reason,
            rows=self.rows(run.id),
            seconds=spent_s + watch.seconds,
            budgets=tuple(name for name in BUDGETS if getattr(config, name) is not None),
        )

    def _jobs(self, run: _Run, problems: Sequence[Problem], watch: StopWatch) -> str:
        """Work on the problems that are not done yet; returns the reason for an early stop, or an empty string."""
        rows = {row.problem: row for row in self.rows(run.id)}
        left = [problem for problem in problems if not _is_over(rows.get(problem.id))]
        side_by_side = min(run.side_by_side, max(len(left), 1))
        patience = run.settings.mailbox_minutes
        with open_checkpoints(locate_checkpoints(self._store.path)) as checkpointer:
            lane = Lane(run.settings, run.referee, own_thread=side_by_side > 1, archive_of=self._store.archive)
            clients = run.models.clients(
                self._store,
                run.id,
                Limits(run.config.max_cost_usd, run.config.max_tokens),
                wait=lambda seconds: self._wait(watch, seconds),
                note=lambda kind, data: self._store.event(run.id, kind, data),
            )
            judged_in = {name: run.referee.environment_for(name) for name in languages_of(run.config)}
            memory = RunMemory(self._store, run.id, judged_in, run.settings)
            roles = RunRoles(run.config, run.settings, clients, run.referee, self._tell, memory.of)

            def abort() -> None:
                run.models.close()
                lane.abort()

            with closing(lane):
                schedule = Schedule(
                    watch,
                    side_by_side=side_by_side,
                    patience_s=None if patience is None else patience * SECONDS_PER_MINUTE,
                    work=self._one,
                    waiting=lambda places: self._emit("awaiting", places=list(places)),
                    abort=abort,
                )
                return schedule.run(
                    [
                        ProblemJob(
                            run_id=run.id,
                            problem=problem,
                            config=run.config,
                            settings=run.settings,
                            store=self._store,
                            lane=lane,
                            checkpointer=checkpointer,
                            coder=roles.coder(problem),
                            judge=roles.judge(problem),
                            verifier=roles.verifier(problem),
                            scratchpad=roles.scratchpad(problem),
                            memory=memory.of(problem),
                            watch=watch,
                            lints=LintRecords(self._settings.cache_dir),
                            tell=self._tell,
                        )
                        for problem in left
                    ]
                )

    def _one(self, job: ProblemJob) -> None:
        self._store.set_problem_state(job.run_id, job.problem.id, "running")
        self._emit("problem-started", job.problem.id)
        row = job.run()
        self._store.set_problem_state(job.run_id, job.problem.id, row.state, row.model_dump_json())
        self._emit("problem-finished", job.problem.id, row=row.model_dump(mode="json"))

    def rows(self, run_id: str) -> tuple[RunResult, ...]:
        """The row of each problem, in the order of the run; unfinished problems are ``pending`` or ``running``."""
        return rows_of(self._store, run_id)


@dataclass(frozen=True)
class _Run:
    """A run that this process drives, with its settings, referee and models."""

    id: str
    config: RunConfig
    settings: Settings
    referee: RefereeLike
    models: Models

    @property
    def side_by_side(self) -> int:
        """The number of problems to work on at once. While one waits for a model, others use the referee."""
        asked = self.settings.parallel_problems
        return asked if isinstance(asked, int) else PARALLEL_WITH_MODELS if self.models.metered else 1


def models_of(config: RunConfig) -> tuple[str, ...]:
    """The models that a run asks."""
    asked = (config.coder, *config.models, config.judge, config.verifier)
    return tuple(spec for spec in asked if is_model(spec))


def _is_over(row: RunResult | None) -> bool:
    """Whether a problem needs no more work."""
    return row is not None and (row.state == "done" or (row.state == "failed" and not row.retry))


def problems_of(store: Store, run_id: str) -> tuple[Problem, ...]:
    """The problems of a run in its order, in the versions that the run is pinned to."""
    return tuple(store.problem(state.problem, version=state.version) for state in store.problem_states(run_id))


def rows_of(store: Store, run_id: str) -> tuple[RunResult, ...]:
    """The row of each problem of a run, in the run's order."""
    rows = []
    for state in store.problem_states(run_id):
        if state.state in {"done", "failed"} and state.detail:
            rows.append(RunResult.model_validate_json(state.detail))
        else:
            rows.append(RunResult(problem=state.problem, state=state.state))
    return tuple(rows)
