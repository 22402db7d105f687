"""Many problems, one after the other: budgets, stops, resumption."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.agents import coder_from_spec, judge_from_spec, verifier_from_spec
from kernelwright.agents.llm import Models, absolute_spec
from kernelwright.campaign._driver import Driver, Underway
from kernelwright.campaign._locks import RunLock
from kernelwright.campaign._problem_job import ProblemJob
from kernelwright.campaign._results import CampaignResult, RunResult
from kernelwright.campaign._run_roles import RunRoles
from kernelwright.campaign.memory import RunMemory
from kernelwright.campaign.recipe import load_recipe, planned_search
from kernelwright.campaign.runs import ENDED, models_of, problems_of, rows_of, settings_of
from kernelwright.campaign.searched import languages_of
from kernelwright.campaign.stopping import StopWatch
from kernelwright.config import Settings
from kernelwright.datasets import LintRecords
from kernelwright.errors import UsageError
from kernelwright.pool import checked_pool
from kernelwright.records import Problem, RunConfig


def run_config(settings: Settings, problems: Sequence[str]) -> RunConfig:
    """The configuration of a run with these settings. It records every setting, so a resume uses the same ones.

    Raises:
        UsageError: the pool is unknown, the recipe's search does not fit the backend or the models, or there are
            several models and the recipe has no search.
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
        settings={**settings.model_dump(mode="json"), "pool": checked_pool(settings.pool)},
    )


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
        with (
            Models(self._settings, models_of(config)) as models,
            self._judging(self._settings, languages_of(config)) as (referee, pool),
        ):
            run_id = self._store.create_run(config, problems)
            with RunLock(self._store.path, run_id):
                return self._work(Underway(run_id, config, self._settings, referee, models, pool=pool), problems)

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
            self._judging(settings, languages_of(config), stored.id) as (referee, pool),
        ):
            self._store.set_run_config(stored.id, config)
            return self._work(Underway(stored.id, config, settings, referee, models, stored.seconds, pool), problems)

    def _work(self, run: Underway, problems: Sequence[Problem]) -> CampaignResult:
        over = [row.problem for row in self.rows(run.id) if _is_over(row)]
        left = [problem for problem in problems if problem.id not in over]
        return self._drive(
            run, rounds=run.config.rounds, done=len(over), work=lambda watch: self._jobs(run, left, watch)
        )

    def _jobs(self, run: Underway, problems: Sequence[Problem], watch: StopWatch) -> str:
        """Work on the problems; returns the reason for an early stop, or an empty string."""
        with self._at_work(run, watch, len(problems), self._one) as at_work:
            judged_in = {name: run.referee.environment_for(name) for name in languages_of(run.config)}
            memory = RunMemory(self._store, run.id, judged_in, run.settings)
            roles = RunRoles(run.config, run.settings, at_work.clients, run.referee, self._tell, memory.of)
            return at_work.schedule.run(
                [
                    ProblemJob(
                        run_id=run.id,
                        problem=problem,
                        config=run.config,
                        settings=run.settings,
                        store=self._store,
                        lane=at_work.lane,
                        coder=roles.coder(problem),
                        judge=roles.judge(problem),
                        verifier=roles.verifier(problem),
                        scratchpad=roles.scratchpad(problem),
                        memory=memory.of(problem),
                        watch=watch,
                        lints=LintRecords(self._settings.cache_dir),
                        tell=self._tell,
                    )
                    for problem in problems
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


def _is_over(row: RunResult | None) -> bool:
    """Whether a problem needs no more work."""
    return row is not None and (row.state == "done" or (row.state == "failed" and not row.retry))
