"""Benches: k independent samples of each of many problems, which are written, kept, and judged on request.

All state is in the store's rows. A written sample is not written again, and a sample that was judged in an environment
is not judged there again. Any number of processes may work on one bench, for example one for each GPU. Each process
takes the problems that no other process holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelwright.agents import coder_from_spec
from kernelwright.agents.llm import Limits, Models, absolute_spec
from kernelwright.campaign._driver import Driver
from kernelwright.campaign._lane import Lane
from kernelwright.campaign._locks import RunLock, is_held
from kernelwright.campaign._results import CampaignResult, RunStatus
from kernelwright.campaign._run_roles import RunRoles
from kernelwright.campaign._sample_job import SampleJob, lock_of
from kernelwright.campaign._sample_results import SamplePlan
from kernelwright.campaign._schedule import Schedule
from kernelwright.campaign.campaign import (
    BUDGETS,
    PARALLEL_WITH_MODELS,
    SECONDS_PER_MINUTE,
    STATUS_OF_STOP,
    models_of,
    rows_of,
    settings_of,
)
from kernelwright.campaign.stopping import DeviceSeconds, StopWatch
from kernelwright.config import Settings
from kernelwright.errors import UsageError
from kernelwright.records import Problem, RunConfig
from kernelwright.store import Sample

if TYPE_CHECKING:
    from kernelwright.evaluator import RefereeLike
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
            settings=settings.model_dump(mode="json"),
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
            referee = held.enter_context(self._open_referee(settings))
            work = _Work(stored.id, config, plan, settings, models, referee, writes, judge)
            return self._drive(work, stored.seconds)

    def _drive(self, work: _Work, spent_s: float) -> CampaignResult:
        config, run_id = work.config, work.run_id
        problems = self._store.run_problems(run_id)
        left_s = None if config.max_minutes is None else config.max_minutes * SECONDS_PER_MINUTE - spent_s
        spent = DeviceSeconds(self._store, run_id)
        watch = StopWatch(budget_s=left_s, asked=lambda: self._asked_to_stop(run_id, config, spent))
        self._store.set_run_status(run_id, "running")
        names = [problem.id for problem in problems]
        self._emit("run-started", run=run_id, problems=names, rounds=work.plan.samples, done=0)
        status: RunStatus = "failed"
        reason = ""
        try:
            reason = self._with_signals(watch, lambda: self._jobs(work, problems, watch))
            status = STATUS_OF_STOP.get(reason) or self._how_it_stands(run_id)
        except KeyboardInterrupt:
            status, reason = "interrupted", "interrupted"
        finally:
            self._close(run_id, status, watch.seconds)
        return CampaignResult(
            run_id=run_id,
            status=status,
            reason=reason,
            rows=rows_of(self._store, run_id),
            seconds=spent_s + watch.seconds,
            budgets=tuple(name for name in BUDGETS if getattr(config, name) is not None),
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

    def _jobs(self, work: _Work, problems: Sequence[Problem], watch: StopWatch) -> str:
        """Work on all problems; returns the reason for an early stop, or an empty string."""
        patience = work.settings.mailbox_minutes
        side_by_side = min(work.side_by_side, len(problems))
        lane = Lane(work.settings, work.referee, own_thread=side_by_side > 1, archive_of=self._store.archive)
        clients = work.models.clients(
            self._store,
            work.run_id,
            Limits(work.config.max_cost_usd, work.config.max_tokens),
            wait=lambda seconds: self._wait(watch, seconds),
            note=lambda kind, data: self._store.event(work.run_id, kind, data),
        )
        roles = RunRoles(work.config, work.settings, clients, work.referee, self._tell)

        def abort() -> None:
            work.models.close()
            lane.abort()

        elsewhere: set[str] = set()  # problems that another process had
        with closing(lane):
            schedule: Schedule[SampleJob] = Schedule(
                watch,
                side_by_side=side_by_side,
                patience_s=None if patience is None else patience * SECONDS_PER_MINUTE,
                work=lambda job: self._one(job, elsewhere),
                waiting=lambda places: self._emit("awaiting", places=list(places)),
                abort=abort,
            )
            jobs = [
                SampleJob(
                    run_id=work.run_id,
                    problem=problem,
                    config=work.config,
                    plan=work.plan,
                    store=self._store,
                    lane=lane,
                    coder=roles.coder(problem) if work.write else None,
                    judges=work.judge,
                    environment=lambda candidate: work.referee.environment_for(candidate.backend).id,
                    watch=watch,
                    tell=self._tell,
                )
                for problem in problems
            ]
            while jobs:
                elsewhere.clear()
                if reason := schedule.run(jobs):
                    return reason
                # Another process that released a problem may have died, so try that problem again.
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


@dataclass(frozen=True)
class _Work:
    """The work of one process on a bench, with its settings, models and referee."""

    run_id: str
    config: RunConfig
    plan: SamplePlan
    settings: Settings
    models: Models
    referee: RefereeLike
    write: bool
    judge: bool

    @property
    def side_by_side(self) -> int:
        """The number of problems to work on at once. While one waits for a model, others use the referee."""
        asked = self.settings.parallel_problems
        return asked if isinstance(asked, int) else PARALLEL_WITH_MODELS if self.models.metered else 1


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
