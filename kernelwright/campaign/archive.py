"""A problem's archive of input generators, which the Tester makes from correct kernels with seeded faults."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from kernelwright.agents import CoderError, RoleFailed, StepContext, Workbench
from kernelwright.agents.llm import Limits, Models
from kernelwright.agents.offline_coder import OfflineCoder
from kernelwright.agents.registry import tester_from_spec
from kernelwright.agents.tester import MOST_GENERATORS, Archive, OfflineTester, Propose, seed_faults
from kernelwright.campaign._run_roles import RunRoles
from kernelwright.campaign.campaign import run_config
from kernelwright.config import Settings
from kernelwright.errors import UsageError
from kernelwright.evaluator import RefereeLike, Session
from kernelwright.pool import OpenReferee, open_local_referee
from kernelwright.records import Backend, Candidate, Evaluation, InputGenerator, Problem
from kernelwright.store import Store

__all__ = ["ArchiveMade", "make_archive", "right_kernels"]

_BACKEND: Backend = "cpp"  # of the kernels that faults are seeded into
_SEARCH = "offline"  # author of generators that no model proposed
_MOST_OF_ALL = 32  # generators in an archive: each one costs every candidate one call for each variant
_KERNELS = 2  # correct kernels to seed faults into: faults come before a kernel, so more kernels tell little more


class ArchiveMade(NamedTuple):
    """The result of :func:`make_archive`: the Tester's report, counts, and the whole archive in ``generators``."""

    archive: Archive
    new: int
    kernels: int
    faults: int
    generators: tuple[InputGenerator, ...]


class _Calls(Protocol):
    def call(self, entry: str, payload: dict[str, Any]) -> dict[str, Any]: ...


def make_archive(
    problem: Problem,
    *,
    settings: Settings,
    store: Store,
    open_referee: OpenReferee = open_local_referee,
    tell: Callable[[str], None] = lambda text: None,
) -> ArchiveMade:
    """Let the Tester make generators for a problem, and put them into its archive in the store.

    The correct kernels are in C++: the newest ones in the store that passed, and the offline Coder's first kernel. The
    archive serves kernels in any language. Nothing is timed. A fault that the archive already catches needs no further
    generator. If the tester is a model, it proposes first, within the budgets of the settings; its cost is kept as a
    run of the recipe "archive".

    Raises:
        UsageError: the archive is full, no correct kernel is known and none can be written, or an unknown tester.
        AwaitingReply: the model is a mailbox without an answer yet; once it is answered, the same call continues.
        InvalidReferenceError: the problem cannot be judged.
        MachineError: the problem cannot be judged here.
    """
    store.record_problem(problem)
    known = store.archive(problem)
    if len(known) >= _MOST_OF_ALL:
        raise UsageError(f"the archive of {problem.id} is full: {len(known)} generators")
    with open_referee(settings) as referee, _proposing(problem, settings, store, referee, known) as propose:
        with referee.open(problem, backend=_BACKEND, baselines=("eager",), archive=known) as opened:
            kernels = list(right_kernels(problem, _BACKEND, store, opened))
            if not kernels:
                raise UsageError(
                    f"no kernel for {problem.id} has passed, and the offline Coder writes none",
                    hint=f"let one pass first: kernelwright evaluate FILE --problem {problem.id}",
                )
            faulty = seed_faults(kernels)
            tell(f"{len(faulty)} faults in {len(kernels)} right kernels")
            proposed: set[InputGenerator] = set()

            def ask(survivors: Sequence[tuple[Candidate, Evaluation]]) -> Sequence[InputGenerator]:
                try:
                    found = propose(survivors)
                except RoleFailed as failed:
                    tell(f"the search continues without the model: {failed.message}")
                    return ()
                proposed.update(found)
                return found

            tester = OfflineTester(opened, problem, backend=_BACKEND, propose=ask, known=known, tell=tell)
            made = tester.make(faulty, most=min(MOST_GENERATORS, _MOST_OF_ALL - len(known)))
            kept = _that_lose_none(made.generators, kernels, opened)
    theirs = [generator for generator in kept if generator in proposed]
    ours = [generator for generator in kept if generator not in proposed]
    new = store.add_generators(problem, theirs, author=settings.tester.model.partition(":")[0], evidence=made.evidence)
    new += store.add_generators(problem, ours, author=_SEARCH, evidence=made.evidence)
    return ArchiveMade(made, new, len(kernels), len(faulty), store.archive(problem))


@contextmanager
def _proposing(
    problem: Problem,
    settings: Settings,
    store: Store,
    referee: RefereeLike,
    known: Sequence[InputGenerator],
) -> Iterator[Propose]:
    """A function that asks the settings' model for generators; without a model it proposes none."""
    tester = tester_from_spec(settings.tester.model)
    if tester is None:
        yield lambda survivors: ()
        return
    offline = {"coder": "offline", "judge": "offline", "verifier": "none", "recipe": "archive", "backend": _BACKEND}
    config = run_config(settings, [problem.id]).model_copy(update=offline)
    with Models(settings, [settings.tester.model]) as models:
        run_id = store.create_run(config, [problem])
        clients = models.clients(
            store,
            run_id,
            Limits(config.max_cost_usd, config.max_tokens),
            wait=_wait,
            note=lambda kind, data: store.event(run_id, kind, data),
        )
        at_it = RunRoles(config, settings, clients, referee, lambda event: None).tester(tester, problem)
        try:
            yield lambda survivors: at_it.propose(problem, known, survivors)
        except BaseException:
            store.set_run_status(run_id, "failed")
            raise
        store.set_run_status(run_id, "finished")


def _wait(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def right_kernels(problem: Problem, backend: Backend, store: Store | None, session: _Calls) -> Iterator[Candidate]:
    """At most two correct kernels: those in the store that passed, the newest first, then the offline Coder's first."""
    found: dict[str, Candidate] = {}
    if store is not None:
        passed = store.evaluations(problem=problem.id, control=False, passed=True, current_only=True, newest_first=True)
        found = {e.candidate.sha256: e.candidate for e in passed if e.candidate.backend == backend}
    context = StepContext(problem=problem, backend=backend, round=0, rounds=1, bench=Workbench(session.call))
    coder = OfflineCoder()
    if backend in coder.backends and len(found) < _KERNELS:
        try:
            written = coder.propose(context).candidate
        except CoderError:
            written = None
        if written is not None:
            found.setdefault(written.sha256, written)
    yield from list(found.values())[:_KERNELS]


def _that_lose_none(
    generators: tuple[InputGenerator, ...], kernels: list[Candidate], session: Session
) -> tuple[InputGenerator, ...]:
    """The generators on which every correct kernel passes. A generator that fails a correct kernel is of no use."""
    if not generators:
        return ()
    trials = session.admit(generators, _BACKEND)
    losing = {found for kernel in kernels for found in session.caught_by(kernel, trials)}
    return tuple(generator for generator in generators if generator.id not in losing)
