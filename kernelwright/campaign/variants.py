"""The shape variants of problems that a user wants to time."""

from __future__ import annotations

from collections.abc import Iterable

from kernelwright.config import Settings
from kernelwright.datasets import choose_variant, every_variant
from kernelwright.errors import UsageError
from kernelwright.records import Backend, DeviceClass, Problem

EVERY = "all"


def device_class_of(backend: Backend, settings: Settings) -> DeviceClass:
    """The device class whose shapes the kernels of a backend run on here."""
    if backend == "cpp":
        return "cpu"
    from kernelwright.evaluator import device_of

    return device_of(settings).class_for(backend)


def at_variant(problem: Problem, wanted: str | int | None, backend: Backend, settings: Settings) -> Problem:
    """The problem with the wanted variant as the timed one. ``wanted`` is its number, its sizes, or None for no change.

    Raises:
        UsageError: no variant or several variants match, or the problem's name says the variant already.
    """
    if wanted is None:
        return problem
    _refuse_two(problem)
    return choose_variant(problem, wanted, device_class_of(backend, settings))


def at_variants(problems: Iterable[Problem], wanted: str | int | None, settings: Settings) -> tuple[Problem, ...]:
    """The problems of a run, each with the wanted variant as the timed one; ``all``: one problem for each variant.

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
