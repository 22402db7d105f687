"""Selects which of a problem's shape variants is timed: by number, by its constants, or each in turn."""

from __future__ import annotations

from collections.abc import Mapping

from kernelwright.errors import UsageError
from kernelwright.records import DeviceClass, KnobValue, Problem
from kernelwright.records.verdicts import constants_in_words

Constants = Mapping[str, KnobValue]


def choose_variant(problem: Problem, wanted: str | int, device_class: DeviceClass = "cpu") -> Problem:
    """The problem with the variant ``wanted`` timed.

    Args:
        wanted: the variant's number in the file, from 0, or some of its constants, such as ``COLUMNS=1025``. They must
            identify a single variant.
        device_class: the device class whose variants are searched.

    Raises:
        UsageError: no variant, or several, match.
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
    """One problem for each of its variants, with that variant timed, in the order of its file."""
    return tuple(problem.at_variant(number) for number in range(len(_declared(problem, device_class))))


def no_variant(problem: Problem, device_class: DeviceClass, wanted: str | int | None = None) -> UsageError:
    """The error for a variant that a problem does not have. ``wanted`` None stands for the problem's own variant."""
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
