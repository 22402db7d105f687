"""Which of a problem's shape variants is timed: by its number, by what it sets, or each in turn."""

from __future__ import annotations

from collections.abc import Mapping

from kernelwright.errors import UsageError
from kernelwright.records import DeviceClass, KnobValue, Problem
from kernelwright.records.verdicts import constants_in_words

Constants = Mapping[str, KnobValue]


def choose_variant(problem: Problem, wanted: str | int, device_class: DeviceClass = "cpu") -> Problem:
    """The problem with the variant timed that ``wanted`` names.

    Args:
        wanted: its number in the file, from 0, or what it sets, such as ``COLUMNS=1025``: as many constants as it takes
            for one variant alone to have them.
        device_class: whose variants are meant.

    Raises:
        UsageError: none, or several, are named so.
    """
    declared = _declared(problem, device_class)
    text = str(wanted).strip()
    if text.isdecimal():
        found = [int(text)] if int(text) < len(declared) else []
    else:
        asked = dict(part.strip().partition("=")[::2] for part in text.split(","))
        found = [number for number, constants in enumerate(declared) if _has(constants, asked)]
    if len(found) == 1:
        return problem.at_variant(found[0])
    if found:
        raise UsageError(f"several variants of {problem.declared.id} have {text}", hint=_listed(declared, device_class))
    raise no_variant(problem, device_class, text)


def every_variant(problem: Problem, device_class: DeviceClass = "cpu") -> tuple[Problem, ...]:
    """The problem once for each of its variants, in the order of its file, with that one timed."""
    return tuple(problem.at_variant(number) for number in range(len(_declared(problem, device_class))))


def no_variant(problem: Problem, device_class: DeviceClass, wanted: str | int | None = None) -> UsageError:
    """The error that a problem has no such variant; ``wanted`` is the problem's own where it is None."""
    declared = _declared(problem, device_class)
    named = problem.variant if wanted is None else wanted
    return UsageError(
        f"{problem.declared.id} has no {device_class} variant {named}",
        hint=_listed(declared, device_class),
        variant=str(named),
    )


def _declared(problem: Problem, device_class: DeviceClass) -> tuple[dict[str, KnobValue], ...]:
    return problem.declared.meta.variants_for(device_class)


def _has(constants: Constants, asked: Mapping[str, str]) -> bool:
    return all(name in constants and str(constants[name]) == value for name, value in asked.items())


def _listed(declared: tuple[dict[str, KnobValue], ...], device_class: DeviceClass) -> str:
    known = "; ".join(f"{number}: {constants_in_words(constants)}" for number, constants in enumerate(declared))
    return f"its {device_class} variants are {known}"
