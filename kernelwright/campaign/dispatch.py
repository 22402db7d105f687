"""One file with the winners of several shape variants: choose the kernels and read their evidence from the store."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kernelwright.config import Settings
from kernelwright.datasets import find_problem
from kernelwright.errors import UsageError
from kernelwright.records import Backend, Candidate, Problem, Status

if TYPE_CHECKING:
    from kernelwright.export import Measured, Route
    from kernelwright.store import Store, StoredEvaluation

_HASH = re.compile(r"[0-9a-fA-F]{6,64}")
_DIGITS = 12


class DispatchMade(NamedTuple):
    """A dispatching file: its text, its problem, the kernel that serves each variant, and warnings."""

    text: str
    problem: str
    routes: tuple[Route, ...]
    warnings: tuple[str, ...]


class _Wanted(NamedTuple):
    """Kernels of a problem. ``problem`` is the problem as its file declares it, without a chosen variant."""

    problem: Problem
    kernels: tuple[Candidate, ...]


def make_dispatch(
    store: Store, named: Sequence[str], settings: Settings, *, backend: Backend | None = None
) -> DispatchMade:
    """A drop-in of the named kernels, which chooses among them by the shape and dtype of its input.

    Args:
        named: hashes of kernels, and problems, meaning the best kernel of each variant (``P@2``: of that one alone).
        backend: use only kernels in this language.

    Raises:
        UsageError: no kernel is named, a kernel never passed on the common machine or was refused, or the kernels are
            of different problems or languages.
    """
    from kernelwright.export import assign_routes, export_dispatch

    baseline = settings.baselines[0]
    wanted = _one_problem([_wanted(store, name, settings, backend) for name in named])
    kernels = {kernel.sha256: kernel for kernel in wanted.kernels if backend in (None, kernel.backend)}
    if not kernels:
        raise UsageError("which kernels?", hint="name a problem whose kernels were timed, or kernels by their hashes")
    languages = sorted({kernel.backend for kernel in kernels.values()})
    if len(languages) > 1:
        raise UsageError(
            f"these kernels are in several languages: {', '.join(languages)}",
            hint="choose one language with --backend, since a call runs on one device",
        )
    evidence = _of_one_machine([entry for kernel in kernels for entry in _evidence(store, wanted.problem, kernel)])
    for kernel in kernels.values():
        _refuse_unproved(kernel, evidence)
    measured = [_measured(entry) for entry in evidence if entry.verdict.passed]
    environment = evidence[0].environment
    routes = assign_routes(wanted.problem, measured, environment, baseline)
    text = export_dispatch(wanted.problem, routes, environment, baseline)
    return DispatchMade(text, wanted.problem.id, routes, tuple(_warnings(routes, kernels)))


def _wanted(store: Store, name: str, settings: Settings, backend: Backend | None) -> _Wanted:
    """The kernels that a word of the command line names."""
    if _HASH.fullmatch(name):
        kernel = store.candidate(name)
        return _Wanted(store.problem(kernel.problem_id).declared, (kernel,))
    found = find_problem(name, settings.suite_dirs)
    variants = [one for one in store.variants_of(found) if found.variant in (0, one.variant)]
    rows = [row for one in variants for row in store.best(one.id, baseline=settings.baselines[0])]
    rows = [row for row in rows if backend in (None, row.backend)]
    if not rows:
        raise UsageError(
            f"no kernel of {found.id} was timed",
            hint=f"kernelwright optimize {found.declared.id} --variant all; or name kernels by their hashes",
        )
    return _Wanted(found.declared, tuple(store.candidate(row.candidate, problem=row.problem) for row in rows))


def _one_problem(found: Sequence[_Wanted]) -> _Wanted:
    if not found:
        raise UsageError("which kernels?", hint="name a problem, or kernels by their hashes")
    ids = sorted({one.problem.id for one in found})
    if len(ids) > 1:
        raise UsageError(f"these kernels are of several problems: {', '.join(ids)}", hint="a file is for one problem")
    return _Wanted(found[-1].problem, tuple(kernel for one in found for kernel in one.kernels))


def _evidence(store: Store, problem: Problem, sha256: str) -> list[StoredEvaluation]:
    """The decisive evaluation of a kernel for each variant and machine, on the current text of the problem."""
    found: dict[tuple[str, str], StoredEvaluation] = {}
    for variant in store.variants_of(problem):
        for entry in store.evaluations(problem=variant.id, candidate=sha256, control=False, current_only=True):
            place = variant.id, entry.environment.id
            if place not in found or _weight(entry) >= _weight(found[place]):
                found[place] = entry
    return list(found.values())


_REFUTES = (
    Status.INCORRECT_SHAPE,
    Status.INCORRECT_DTYPE,
    Status.INCORRECT_NUMERICAL,
    Status.REWARD_HACK,
    Status.QUARANTINED,
)


def _weight(entry: StoredEvaluation) -> int:
    """How decisive an evaluation is. Among equal ones the later one counts, as on the board."""
    timing = entry.verdict.timing
    if _refuted(entry) or (entry.verdict.passed and timing is not None and timing.confirmed):
        return 3
    return 0 if not entry.verdict.passed else 1 if timing is None else 2


def _refuted(entry: StoredEvaluation) -> bool:
    return entry.quarantined is not None or entry.verdict.status in _REFUTES


def _of_one_machine(evidence: Sequence[StoredEvaluation]) -> list[StoredEvaluation]:
    """The evaluations of the environment with the most measurements; speedups of different ones do not compare."""
    by_environment: dict[str, list[StoredEvaluation]] = {}
    for entry in evidence:
        by_environment.setdefault(entry.environment.id, []).append(entry)

    def most(found: list[StoredEvaluation]) -> tuple[int, int, str]:
        timed = [entry for entry in found if entry.verdict.timing is not None]
        return len({entry.verdict.problem for entry in timed}), len(timed), max(entry.id for entry in found)

    return max(by_environment.values(), key=most, default=[])


def _refuse_unproved(kernel: Candidate, evidence: Sequence[StoredEvaluation]) -> None:
    """Raise UsageError for a kernel that was refuted or never passed. A failure on any variant refutes a kernel."""
    own = [entry for entry in evidence if entry.candidate.sha256 == kernel.sha256]
    name = kernel.sha256[:_DIGITS]
    refuted = next((entry for entry in own if _refuted(entry)), None)
    if refuted is not None:
        why = refuted.quarantined or refuted.verdict.reason
        raise UsageError(f"kernel {name} was refused: {why}", hint="leave it out, or have it judged again")
    if not any(entry.verdict.passed for entry in own):
        raise UsageError(
            f"kernel {name} never passed on the machine where the others were measured",
            hint=f"kernelwright kernels verify {name}",
        )


def _measured(entry: StoredEvaluation) -> Measured:
    from kernelwright.export import Measured

    said = entry.verdict.variant
    return Measured(0 if said is None else said.number, entry.candidate, entry.verdict)


def _warnings(routes: Sequence[Route], kernels: Iterable[str]) -> list[str]:
    """Warnings about kernels that were not confirmed or are not in the file."""
    served = {route.kernel.sha256 for route in routes if route.kernel is not None}
    found = {
        sha256: f"kernel {sha256[:_DIGITS]} is not in the file: it is the fastest on no shape"
        for sha256 in kernels
        if sha256 not in served
    }
    for route in routes:
        timing = route.evidence.verdict.timing
        if route.kernel is None or (timing is not None and timing.confirmed):
            continue
        name = route.kernel.sha256[:_DIGITS]
        what = "was never timed" if timing is None else "was timed once and not confirmed in fresh processes"
        found[route.kernel.sha256] = f"kernel {name} {what}: kernelwright kernels verify {name}"
    return list(found.values())
