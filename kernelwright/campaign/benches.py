"""Benches: k independent samples of each of many problems, which are written, kept, and judged on request.

All state is in the store's rows. A written sample is not written again, and a sample that was judged in an environment
is not judged there again. Any number of processes may work on one bench, for example one for each GPU. Each process
takes the problems that no other process holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kernelwright.agents import coder_from_spec
from kernelwright.agents.llm import Models, absolute_spec
from kernelwright.campaign._driver import Driver, Underway
from kernelwright.campaign._locks import RunLock, is_held
from kernelwright.campaign._results import CampaignResult, RunStatus
from kernelwright.campaign._run_roles import RunRoles
from kernelwright.campaign._sample_job import SampleJob, lock_of
from kernelwright.campaign._sample_results import SamplePlan
from kernelwright.campaign.runs import BUDGETS, models_of, rows_of, settings_of
from kernelwright.campaign.stopping import StopWatch
from kernelwright.errors import UsageError
from kernelwright.pool import checked_pool
from kernelwright.records import Problem, RunConfig
from kernelwright.store import Sample

if TYPE_CHECKING:
    from kernelwright.store import RunRow, Store

MOST_RUNS = 10_000  # runs of a store that are searched for a bench


class Sampler(Driver):
    """Makes benches and works on them; see :class:`Driver`.

    Work on a bench uses the settings that it was made with, and the paths of the current ones.
    """

    def create(self, plan: SamplePlan, problems: Sequence[Problem], samples: Sequence[Sample] = ()) -> str:
        """Make a bench; returns the id of its run.

        Args:
            samples: samples that exist already, such as kernels that were written elsewhere.

        Raises:
            UsageError: no problem, one named twice, a name that the store already has, or an unknown coder.
        """
        ids = [problem.id for problem in problems]
        if not ids or len(set(ids)) != len(ids):
            raise UsageError("name at least one problem, and each one once", hint="'kernelwright problems list'")
        settings = self._settings.for_boards()
        coder = absolute_spec(settings.coder.model) if plan.origin == "written" else plan.origin
        if plan.origin == "written":
            coder_from_spec(coder, settings.backend)
        config = RunConfig(
            problems=tuple(ids),
            coder=coder,
            judge="none",
            backend=settings.backend,
            rounds=plan.samples,
            **{name: getattr(settings, name) for name in BUDGETS},
            sandbox=settings.sandbox,
            threads=settings.threads,
            baselines=settings.baselines,
            recipe=settings.recipe.name,
            bench=plan.model_dump(mode="json"),
            suite_dirs=tuple(str(folder) for folder in settings.suite_dirs),
            settings={**settings.model_dump(mode="json"), "pool": checked_pool(settings.pool)},
        )
        return self._store.create_bench(config, problems, samples)

    def work(self, run_id: str, *, write: bool = True, judge: bool = True, **budgets: float | None) -> CampaignResult:
        """Write the samples that a bench lacks, and judge those that were not judged in this environment.

        Args:
            write: whether to write missing samples. ``judge``: whether to judge samples.
            budgets: new budgets for the whole bench: ``max_minutes``, ``max_cost_usd``, ``max_tokens``,
                ``max_device_seconds``; None keeps the old one.

        Raises:
            UsageError: no such run, it is not a bench, it was cancelled, or another process writes samples of it.
            SandboxError, MissingToolError: the work cannot be done here.
            StoreError: the store failed; finished work is kept in it.
        """
        stored = self._store.run(run_id)
        plan = plan_of(stored)
        if stored.status == "cancelled":
            raise UsageError(f"the bench {plan.name!r} was cancelled", hint="make a new one")
        config = stored.config.model_copy(update={name: most for name, most in budgets.items() if most is not None})
        if config != stored.config:
            self._store.set_run_config(stored.id, config)
        settings = settings_of(self._settings, config)
        writes = write and plan.origin == "written"
        asked = models_of(config) if writes else ()
        with ExitStack() as held:
            if writes:  # the process that asks models counts the run's budget, so there can be only one
                held.enter_context(RunLock(self._store.path, stored.id))
            models = held.enter_context(Models(settings, asked))
            referee, pool = held.enter_context(self._judging(settings, (config.backend,), stored.id))
            run = Underway(stored.id, config, settings, referee, models, stored.seconds, pool)
            return self._drive(
                run,
                rounds=plan.samples,
                done=0,
                work=lambda watch: self._jobs(run, plan, writes, judge, watch),
                ended=lambda: self._how_it_stands(stored.id),
            )

    def _how_it_stands(self, run_id: str) -> RunStatus:
        """The status of a bench when this process stops. It is not ``paused`` while other processes go on.

        ``paused`` would stop them. A problem on which the machine failed is over as well; :meth:`work` tries it again.
        """
        rows = rows_of(self._store, run_id)
        left = [row.problem for row in rows if row.state not in {"done", "failed"}]
        if not left:
            return "finished"
        return "running" if any(is_held(self._store.path, lock_of(run_id, name)) for name in left) else "paused"

    def _jobs(self, run: Underway, plan: SamplePlan, writes: bool, judge: bool, watch: StopWatch) -> str:
        """Work on all problems; returns the reason for an early stop, or an empty string."""
        problems = self._store.run_problems(run.id)
        elsewhere: set[str] = set()  # problems that another process held

        def one(job: SampleJob) -> None:
            self._one(job, elsewhere)

        with self._at_work(run, watch, len(problems), one) as at_work:
            roles = RunRoles(run.config, run.settings, at_work.clients, run.referee, self._tell)
            jobs = [
                SampleJob(
                    run_id=run.id,
                    problem=problem,
                    config=run.config,
                    plan=plan,
                    store=self._store,
                    lane=at_work.lane,
                    coder=roles.coder(problem) if writes else None,
                    judges=judge,
                    environment=lambda candidate: run.referee.environment_for(candidate.backend).id,
                    watch=watch,
                    tell=self._tell,
                )
                for problem in problems
            ]
            while jobs:
                elsewhere.clear()
                if reason := at_work.schedule.run(jobs):
                    return reason
                # The other process may have died and left its problems unfinished.
                jobs = [job for job in jobs if job.problem.id in elsewhere and not self._is_held(job)]
            return ""

    def _is_held(self, job: SampleJob) -> bool:
        return is_held(self._store.path, lock_of(job.run_id, job.problem.id))

    def _one(self, job: SampleJob, elsewhere: set[str]) -> None:
        self._emit("problem-started", job.problem.id)
        row = job.run()
        if row is None:
            elsewhere.add(job.problem.id)
        else:
            self._store.set_problem_state(job.run_id, job.problem.id, row.state, row.model_dump_json())
            self._emit("problem-finished", job.problem.id, row=row.model_dump(mode="json"))


def plan_of(run: RunRow) -> SamplePlan:
    """The plan of a bench.

    Raises:
        UsageError: the run is not a bench.
    """
    if run.config.bench is None:
        raise UsageError(f"run {run.id} is not a bench", hint="'kernelwright bench list' shows all benches")
    return SamplePlan.model_validate(run.config.bench)


def benches(store: Store) -> list[RunRow]:
    """The benches of a store, the newest first."""
    return [run for run in store.runs(limit=MOST_RUNS) if run.config.bench is not None]


def find_bench(store: Store, name: str) -> RunRow | None:
    """The bench with a name or a run id, or None."""
    found = benches(store)
    return next((run for run in found if plan_of(run).name == name or run.id == name.upper()), None)
