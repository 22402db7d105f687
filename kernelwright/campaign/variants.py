"""Which shape variants of problems are timed, as somebody asked for them."""

from __future__ import annotations

from collections.abc import Iterable

from kernelwright.config import Settings
from kernelwright.datasets import choose_variant, every_variant
from kernelwright.errors import UsageError
from kernelwright.records import Backend, DeviceClass, Problem

EVERY = "all"


def device_class_of(backend: Backend, settings: Settings) -> DeviceClass:
    """Whose shapes the kernels of a backend meet on this machine."""
    if backend == "cpp":
        return "cpu"
    from kernelwright.evaluator import device_of

    return device_of(settings).class_for(backend)


def at_variant(problem: Problem, wanted: str | int | None, backend: Backend, settings: Settings) -> Problem:
    """The problem with the variant timed that is wanted by number or by what it sets; as it is where none is wanted.

    Raises:
        UsageError: it has none, or several, such variants; or its name says which one already.
    """
    if wanted is None:
        return problem
    _refuse_two(problem)
    return choose_variant(problem, wanted, device_class_of(backend, settings))


def at_variants(problems: Iterable[Problem], wanted: str | int | None, settings: Settings) -> tuple[Problem, ...]:
    """The problems of a run, each with the variant timed that is wanted; ``all``: each in all its variants.

    Raises:
        UsageError: as :func:`at_variant`.
    """
    if wanted is None or str(wanted).strip() != EVERY:
        return tuple(at_variant(problem, wanted, settings.backend, settings) for problem in problems)
    device_class = device_class_of(settings.backend, settings)
    found: list[Problem] = []
    for problem in problems:
        _refuse_two(problem)
        found += every_variant(problem, device_class)
    return tuple(found)


def _refuse_two(problem: Problem) -> None:
    if problem.variant:
        raise UsageError(
            f"{problem.id} names its variant already", hint=f"name {problem.declared.id}, or leave --variant out"
        )
