"""The library of measured moves: changes of kernels, where they were measured, their gains and their failures.

It is computed from a store's evaluations on demand and kept nowhere, so it can never disagree with the verdicts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelwright.agents.moves import MOST_CHOICES
from kernelwright.datasets import operators_of
from kernelwright.evolution._book import Measure, pooled
from kernelwright.evolution._similarity import closeness
from kernelwright.records import Backend, DeviceClass, Interval, KnobValue, Record, Status, sha256_text

if TYPE_CHECKING:
    from kernelwright.store import TriedKernel

LEAST_CLOSENESS = 0.1  # of problems; a move from a less similar problem is no guide
_WORDS_KEPT = 300  # characters of a model's description of its change
_NO_FAILURE = frozenset({Status.PASSED, Status.UNCHECKED, Status.INVALID_REFERENCE})


class MovePlace(Record):
    """The results of a move on one problem, from kernels with one bound, on one device.

    Attributes:
        operators: operators of the problem's reference, with the number of occurrences of each.
        bound: what limited the kernel before the change.
        gain: speed of the changed kernel over the kernel before, by all measurements; None if no pair passed.
        times: number of pairs of kernels that were timed. ``failures``: number of pairs whose change broke the kernel
            or surely made it slower.
        kernels: hashes before and after the change, of the pair with the largest gain; of a failed pair if none passed.
    """

    problem: str
    operators: Mapping[str, int]
    bound: str
    device: str
    device_class: DeviceClass
    gain: Interval | None
    times: int
    failures: int
    kernels: tuple[str, str]


class MeasuredMove(Record):
    """One change, with all of its measurements.

    Attributes:
        id: a hash of the content: equal changes of kernels in one language have the same id.
        told: the change in words; a model's words are quoted as data wherever they are shown.
        change: for kernels of the code generator, the changed choices of the schedule after the change. ``before``:
            the same choices before it.
        gain: median over pairs, with an interval for the mean that includes the variation between pairs; None if no
            pair passed.
    """

    id: str
    backend: Backend
    told: str
    change: Mapping[str, KnobValue] = {}
    before: Mapping[str, KnobValue] = {}
    places: tuple[MovePlace, ...]
    gain: Interval | None
    times: int
    failures: int

    @property
    def paid(self) -> bool:
        """Whether the move surely made kernels faster and failed in at most half as many pairs as were timed."""
        return self.gain is not None and self.gain.low > 1.0 and 2 * self.failures <= self.times

    @property
    def worth(self) -> float:
        """The expected gain as a log-ratio: the lower bound of the gain, reduced by the share of failures."""
        if self.gain is None:
            return -math.inf
        tries = max(self.times, 1) + self.failures
        return math.log(max(self.gain.low, 1e-9)) * (1 - self.failures / tries)

    @property
    def best_place(self) -> MovePlace:
        """The place with the largest gain."""
        return max(self.places, key=lambda place: -math.inf if place.gain is None else place.gain.median)

    def outcome(self) -> str:
        """The measurements in words: ``1.31x [1.28, 1.33] on a/b/c and 2 more, failed 1 time``."""
        names = list(dict.fromkeys(place.problem for place in self.places))
        where = names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        gain = "never passed" if self.gain is None else _in_words(self.gain)
        failed = f", failed {self.failures} time{'s' * (self.failures != 1)}" if self.failures else ""
        return f"{gain} on {where}{failed}"


class Near(NamedTuple):
    """A move and the similarity of its most similar place to the given problem, from 0 to 1."""

    move: MeasuredMove
    closeness: float


class Library:
    """Measured moves, searchable by the problems on which they were measured."""

    def __init__(self, moves: Sequence[MeasuredMove]) -> None:
        self.moves = tuple(moves)

    @classmethod
    def mined(cls, tried: Iterable[TriedKernel], sources: Mapping[str, str]) -> Library:
        """The library from evaluations, which must come in the order in which they were recorded.

        Args:
            sources: the text of each version of a problem.
        """
        return cls(_merged(_pairs(_kernels(tried), sources)))

    def near(
        self, operators: Mapping[str, int], *, bound: str = "unknown", device_class: DeviceClass | None = None
    ) -> list[Near]:
        """Moves ordered by the similarity of their places to a problem, and by their worth among equally similar ones.

        Args:
            operators: operators of the problem.
            bound: what limits the kernel to change.
            device_class: use only measurements on this class of device.
        """
        found = []
        for move in self.moves:
            places = [place for place in move.places if device_class in (None, place.device_class)]
            near = max((closeness(operators, bound, place.operators, place.bound) for place in places), default=0.0)
            if near >= LEAST_CLOSENESS:
                found.append(Near(move, near))
        return sorted(found, key=lambda one: (-round(one.closeness, 1), -one.move.worth, one.move.id))

    @property
    def ranked(self) -> list[MeasuredMove]:
        """All moves, the most valuable first."""
        return sorted(self.moves, key=lambda move: (-move.worth, move.id))


# ------------------------------------------------------------------------------------------------------ mining


class _Kernel:
    """All evaluations of one kernel of one version of a problem in one environment, in order."""

    def __init__(self) -> None:
        self.rows: list[TriedKernel] = []

    @property
    def first(self) -> TriedKernel:
        """The first evaluation of the kernel in a search, which says how it was made."""
        return next((row for row in self.rows if row.purpose == "search"), self.rows[0])

    @property
    def failed(self) -> bool:
        return any(row.status not in _NO_FAILURE for row in self.rows)

    @property
    def bound(self) -> str:
        """What limits the kernel, from the latest evaluation that says so; else "unknown"."""
        return next((row.bound for row in reversed(self.rows) if row.bound != "unknown"), "unknown")

    @property
    def parents(self) -> Iterator[str]:
        """Hashes of the kernels that it was made from, in order."""
        action = self.first.action
        named = [*(action.get("parents") or ()), action.get("base") or "", *self.first.parents]
        return iter(dict.fromkeys(parent for parent in named if parent and parent != self.first.candidate))

    def raced(self, rival: str) -> list[Measure]:
        """Its speed over a rival in each evaluation of this kernel that timed the rival beside it."""
        found = (row.rivals.get(rival) for row in self.rows if row.status is Status.PASSED)
        return [Measure.of(ratio) for ratio in found if ratio is not None and math.isfinite(ratio.median)]

    def timed(self, baseline: str) -> Measure | None:
        found = [row.speedup[baseline] for row in self.rows if baseline in row.speedup]
        measures = tuple(Measure.of(one) for one in found if math.isfinite(one.median))
        return pooled(measures) if measures else None


class _Change(NamedTuple):
    told: str
    change: Mapping[str, KnobValue]
    before: Mapping[str, KnobValue]


class _Pair(NamedTuple):
    """One measurement of a change: a kernel and its parent. ``gain`` is None if the kernel failed."""

    what: _Change
    parent: _Kernel
    child: _Kernel
    operators: Mapping[str, int]
    gain: Measure | None

    @property
    def failed(self) -> bool:
        return self.gain is None or self.gain.high < 0.0

    @property
    def place(self) -> tuple[str, str, str]:
        first = self.child.first
        return first.problem, self.parent.bound, first.device


_Kernels = Mapping[tuple[str, str, str], _Kernel]


def _kernels(tried: Iterable[TriedKernel]) -> dict[tuple[str, str, str], _Kernel]:
    """Kernels by version of the problem, environment and hash, in the order of their first evaluations."""
    found: dict[tuple[str, str, str], _Kernel] = {}
    for row in tried:
        found.setdefault((row.version, row.environment, row.candidate), _Kernel()).rows.append(row)
    return found


def _pairs(kernels: _Kernels, sources: Mapping[str, str]) -> Iterator[_Pair]:
    for (version, environment, _), child in kernels.items():
        parents = [kernels.get((version, environment, sha256)) for sha256 in child.parents]
        right = [parent for parent in parents if parent is not None and not parent.failed]
        if not right:
            continue
        beside = [parent for parent in right if _raced(child, parent)]
        parent = (beside or right)[0]
        what = _change(parent.first, child.first)
        gain = None if child.failed else _gain(child, parent)
        if what is not None and (child.failed or gain is not None):
            yield _Pair(what, parent, child, operators_of(sources.get(version, "")), gain)


def _raced(child: _Kernel, parent: _Kernel) -> list[Measure]:
    """Every measurement of the two kernels beside each other, in evaluations of either."""
    reverse = parent.raced(child.first.candidate)
    return [*child.raced(parent.first.candidate), *(Measure(-m.value, -m.high, -m.low) for m in reverse)]


def _gain(child: _Kernel, parent: _Kernel) -> Measure | None:
    """A kernel's speed over its parent's: from races if there were any, else from speedups over the same baseline."""
    raced = _raced(child, parent)
    if raced:
        return pooled(tuple(raced))
    for baseline in child.first.speedup:
        ours, theirs = child.timed(baseline), parent.timed(baseline)
        if ours is not None and theirs is not None:
            return ours.minus(theirs)
    return None


def _change(parent: TriedKernel, child: TriedKernel) -> _Change | None:
    """The change: choices of a schedule, or a model's words and the knobs that it set; None if there is neither."""
    before, after = parent.action.get("schedule"), child.action.get("schedule")
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        changed = {knob: after[knob] for knob in sorted(after) if after[knob] != before.get(knob)}
        if not 0 < len(changed) <= MOST_CHOICES:
            return None
        earlier = {knob: before.get(knob) for knob in changed}
        told = ", ".join(f"{knob} = {value} (was {earlier[knob]})" for knob, value in changed.items())
        return _Change(told, changed, {knob: value for knob, value in earlier.items() if value is not None})
    if "origin" in child.action:  # made by the generator, and one of the two kernels has no schedule
        return None
    knobs = _knobs_changed(parent.knobs, child.knobs)
    said = " ".join(str(child.action.get("rationale") or child.note).split())[:_WORDS_KEPT]
    told = "; ".join(part for part in (said, knobs) if part)
    return _Change(told, {}, {}) if told else None


def _knobs_changed(before: Mapping[str, KnobValue], after: Mapping[str, KnobValue]) -> str:
    changed = [knob for knob in sorted({*before, *after}) if before.get(knob) != after.get(knob)]
    return ", ".join(f"{knob} = {after.get(knob, 'as in the file')}" for knob in changed)


def _key(backend: Backend, what: _Change) -> str:
    """The id of a change. Equal changes set the same choices from the same values, or have the same words."""
    content: Any = [dict(what.change), dict(what.before)] if what.change else what.told.casefold()
    return sha256_text(json.dumps([backend, content], sort_keys=True))[:12]


def _merged(pairs: Iterable[_Pair]) -> list[MeasuredMove]:
    groups: dict[str, list[_Pair]] = {}
    for pair in pairs:
        groups.setdefault(_key(pair.child.first.backend, pair.what), []).append(pair)
    moves = []
    for key, members in groups.items():
        by_place: dict[tuple[str, str, str], list[_Pair]] = {}
        for pair in members:
            by_place.setdefault(pair.place, []).append(pair)
        what = members[0].what
        moves.append(
            MeasuredMove(
                id=key,
                backend=members[0].child.first.backend,
                told=what.told,
                change=what.change,
                before=what.before,
                places=tuple(map(_place, by_place.values())),
                **_counted(members),
            )
        )
    return moves


def _place(pairs: Sequence[_Pair]) -> MovePlace:
    best = max(pairs, key=lambda pair: -math.inf if pair.gain is None else pair.gain.value)
    first = best.child.first
    return MovePlace(
        problem=first.problem,
        operators=best.operators,
        bound=best.parent.bound,
        device=first.device,
        device_class=first.device_class,
        kernels=(best.parent.first.candidate, first.candidate),
        **_counted(pairs),
    )


def _counted(pairs: Sequence[_Pair]) -> dict[str, Any]:
    gains = [pair.gain for pair in pairs if pair.gain is not None]
    return {
        "gain": _combined(gains).ratio if gains else None,
        "times": len(gains),
        "failures": sum(pair.failed for pair in pairs),
    }


def _combined(gains: Sequence[Measure]) -> Measure:
    """The median of several gains, with an interval for their mean.

    The gain of a change varies between problems by more than the noise of a measurement. The variance between gains
    (by the method of moments, DerSimonian and Laird, 1986) widens the interval.
    """
    if len(gains) == 1:
        return gains[0]
    values = sorted(gain.value for gain in gains)
    middle = len(values) // 2
    median = values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2
    within = [gain.deviation**2 for gain in gains]
    mean = sum(values) / len(values)
    spread = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    between = max(spread - sum(within) / len(within), 0.0)
    reach = 1.96 / math.sqrt(sum(1.0 / (one + between) for one in within))
    return Measure(median, median - reach, median + reach)


def _in_words(gain: Interval) -> str:
    return f"{gain.median:.2f}x [{gain.low:.2f}, {gain.high:.2f}]"
