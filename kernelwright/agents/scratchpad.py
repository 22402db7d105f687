"""Notes on a problem. They summarise the lessons every few rounds, so that no prompt has to hold all attempts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from kernelwright.agents.model_roles import ModelRole, history_of
from kernelwright.agents.moves import UNTIMED_EFFECT, effects, joint_effects
from kernelwright.agents.roles import Attempt, StepContext
from kernelwright.prompts import Move
from kernelwright.records import Backend
from kernelwright.records.runs import SEVERITIES

MOST_CHARACTERS = 1500
_MOVES_READ = 32  # measured moves that a model is shown
_INSIGHTS_READ = 12
_CHANGES_TOLD = 5  # changes of each kind that the rules list


class Scratchpad(Protocol):
    """Summarises the lessons of a run on a problem."""

    name: str

    def summarise(self, context: StepContext) -> str:
        """The new notes, which replace the earlier ones, in at most :data:`MOST_CHARACTERS`.

        Raises:
            RoleFailed: no usable notes; the earlier ones stay.
        """
        ...


class ModelScratchpad(ModelRole):
    """A language model in this role."""

    role = "scratchpad"

    def summarise(self, context: StepContext) -> str:
        """See :class:`Scratchpad`."""
        found = self._ask(
            context,
            "scratchpad",
            {
                "history": _moves(context),
                "history_limit": _MOVES_READ,
                "failures": context.failures,
                "insights": _insights(context.attempts),
                "scratchpad": context.scratchpad,
                "most_characters": MOST_CHARACTERS,
            },
            check=lambda value: "" if value.notes.strip() else "there are no notes in it",
        ).value
        return _cut(str(found.notes).strip())


class OfflineScratchpad:
    """Rules instead of a language model: the changes that paid, those that did not, and those that failed."""

    name = "offline"

    def summarise(self, context: StepContext) -> str:
        """See :class:`Scratchpad`."""
        languages = _languages(context)
        if len(languages) < 2:
            return _cut(self._of_one(context))
        told = [f"{name}: {self._of_one(context.in_language(name))}" for name in languages]
        most = MOST_CHARACTERS // len(told) - 1
        return "\n".join(_cut(text, most) for text in told)

    def _of_one(self, context: StepContext) -> str:
        """The notes on kernels in one language."""
        known = effects(context.attempts, context.baseline)
        told = [(f"{one.knob} = {one.value}", one.log_ratio) for one in known]
        told += [
            (" and ".join(f"{knob} = {value}" for knob, value in change.items()), ratio)
            for change, ratio in joint_effects(context.attempts, context.baseline)
        ]
        paid = sorted({(ratio, what) for what, ratio in told if ratio is not None and ratio > 0}, reverse=True)
        lost = sorted({(ratio, what) for what, ratio in told if ratio is not None and ratio <= 0})
        failed = dict.fromkeys(what for what, ratio in told if ratio is None)
        lines = [
            _best(context),
            _listed("paid", [_with_ratio(what, ratio) for ratio, what in paid]),
            _listed("did not pay", [_with_ratio(what, ratio) for ratio, what in lost]),
            _listed("failed", list(failed)),
        ]
        return "\n".join(line for line in lines if line)


def _languages(context: StepContext) -> tuple[Backend, ...]:
    """The languages of a context's kernels."""
    return tuple(dict.fromkeys(attempt.candidate.backend for attempt in context.attempts))


def _moves(context: StepContext) -> list[Move]:
    """Every measured move; with several languages, each plan begins with its language."""
    languages = _languages(context)
    if len(languages) < 2:
        return list(history_of(context))
    return [
        move.model_copy(update={"plan": f"{backend}: {move.plan}"})
        for backend in languages
        for move in history_of(context.in_language(backend))
    ]


def _insights(attempts: Sequence[Attempt]) -> tuple[str, ...]:
    """Judges' insights from the attempts, each once, the most severe first and the newest first among equals."""
    said = [insight for attempt in attempts if attempt.advice for insight in attempt.advice.insights]
    newest = list(dict.fromkeys(reversed(said)))
    ranked = sorted(newest, key=lambda one: SEVERITIES.index(one.severity))
    return tuple(f"{one.severity} {one.type} [{one.tag}]: {one.text}" for one in ranked[:_INSIGHTS_READ])


def _best(context: StepContext) -> str:
    best = context.best
    if best is None:
        return f"none of {len(context.attempts)} kernels has passed yet"
    speedup = best.verdict.speedup(context.baseline)
    speed = "not timed" if speedup is None else f"{speedup.median:.2f}x [{speedup.low:.2f}, {speedup.high:.2f}]"
    bound = "unknown" if best.verdict.profile is None else best.verdict.profile.bound
    limit = "" if bound == "unknown" else f", limited by {bound}"
    return f"the best of {len(context.attempts)} kernels: {speed} over {context.baseline}{limit}"


def _with_ratio(what: str, log_ratio: float) -> str:
    return what if abs(log_ratio) == UNTIMED_EFFECT else f"{what} {math.exp(log_ratio):.2f}x"


def _listed(what: str, changes: Sequence[str]) -> str:
    left = len(changes) - _CHANGES_TOLD
    more = f", and {left} more" if left > 0 else ""
    return f"{what}: {', '.join(changes[:_CHANGES_TOLD])}{more}" if changes else ""


def _cut(text: str, most: int = MOST_CHARACTERS) -> str:
    """The text cut to at most ``most`` characters, at the end of a word."""
    return text if len(text) <= most else text[: most - 4].rsplit(None, 1)[0] + " ..."
