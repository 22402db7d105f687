"""Differences between two runs besides their search, and reasons to trust their figures less."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelwright.campaign._compare_data import Result, RunData
from kernelwright.campaign.paired import LEAST_PROBLEMS
from kernelwright.config import NAMES
from kernelwright.records import Environment, RunConfig, Status

if TYPE_CHECKING:
    from kernelwright.store import Store

_PLACES = frozenset({"store", "cache_dir", "suite_dirs", "problems", "recipe", "search", "settings"})
_BUDGETS = ("rounds", "max_minutes", "max_cost_usd", "max_tokens", "max_device_seconds")
_UNEQUAL = 1.1  # numbers of evaluations with at least this ratio are called unequal
_SHOWN = 5


def differing_settings(a: RunConfig, b: RunConfig) -> dict[str, tuple[str, str]]:
    """Settings that differ, both values as text. Paths of this machine and the recipes are left out."""
    values = [{**NAMES.recorded(config.settings), **config.model_dump(mode="json")} for config in (a, b)]
    names = sorted((set(values[0]) | set(values[1])) - _PLACES)
    pairs = {name: (_text(values[0].get(name)), _text(values[1].get(name))) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def warnings_of(store: Store, a: RunData, b: RunData) -> tuple[str, ...]:
    """The warnings about a comparison, one sentence each."""
    sides = {"A": a, "B": b}
    found = [warning for name, side in sides.items() for warning in _of_run(store, name, side)]
    found += _left_out(a, b)
    found += _of_both(a, b)
    found += _environments(store, a, b)
    timed = sum(not (one.untimed or other.untimed) for one, other in zip(a.results, b.results, strict=True))
    if timed < len(a.results):
        found.append(
            f"{_problems(len(a.results) - timed)} with kernels that were never timed: correct, and left out of speedups"
        )
    if timed < LEAST_PROBLEMS:
        found.append(f"{_problems(timed)} in common with times: too few for any conclusion about speed")
    return tuple(found)


def _of_run(store: Store, name: str, data: RunData) -> Iterator[str]:
    """Warnings about one run."""
    if data.row.status != "finished":
        yield f"run {name} is {data.row.status}, not finished"
    counts: Mapping[str, Callable[[Result], bool]] = {
        "not done: the best of the search so far counts": lambda found: not found.done,
        "unconfirmed: times of the search count": lambda found: (
            found.done and found.speedup is not None and not found.confirmed
        ),
        "withdrawn: a kernel that was quarantined afterwards counts as none": lambda found: found.withdrawn,
        "without a valid reference: it counts as having no kernel": lambda found: (
            found.row.status is Status.INVALID_REFERENCE
        ),
    }
    for said, holds in counts.items():
        count = sum(map(holds, data.results))
        if count:
            yield f"in run {name}, {_problems(count)} {said}"
    reused = store.run_costs(data.row.id).reused_replies
    if reused:
        yield f"run {name} reused {reused} replies that earlier runs paid for: a run without them would cost more"


def _left_out(a: RunData, b: RunData) -> Iterator[str]:
    """Warnings about problems that are not compared."""
    ours, theirs = (set(side.row.config.problems) for side in (a, b))
    common = set(a.problems)
    for name, only in (("A", ours - theirs), ("B", theirs - ours)):
        if only:
            yield f"{_problems(len(only))} only in run {name}: left out"
    if changed := (ours & theirs) - common:
        yield f"{_problems(len(changed))} with different references in the two runs: left out"


def _of_both(a: RunData, b: RunData) -> Iterator[str]:
    """Warnings about settings and budgets that differ between the runs, besides their recipes."""
    one, other = a.row.config, b.row.config
    for what, name in (("coders", "coder"), ("backends", "backend"), ("sandboxes", "sandbox"), ("threads", "threads")):
        if (left := getattr(one, name)) != (right := getattr(other, name)):
            yield f"{what} differ: {left} and {right}"
    if one.baselines != other.baselines:
        yield f"baselines differ: {', '.join(one.baselines)} and {', '.join(other.baselines)}"
    if one.sandbox == other.sandbox and (layers := _layers(a) ^ _layers(b)):
        yield f"layers of the sandbox differ: {', '.join(sorted(layers))}"
    budgets = [
        f"{name} {_text(getattr(one, name))} and {_text(getattr(other, name))}"
        for name in _BUDGETS
        if getattr(one, name) != getattr(other, name)
    ]
    samples = [NAMES.recorded(config.settings).get("recipe.samples") for config in (one, other)]
    if samples[0] != samples[1]:
        budgets.append(f"samples {_text(samples[0])} and {_text(samples[1])}")
    if budgets:
        yield f"budgets differ: {'; '.join(budgets)}"
    counts = sorted((a.evaluations, b.evaluations))
    if counts[1] > _UNEQUAL * counts[0]:
        yield f"evaluations differ: {a.evaluations} and {b.evaluations}; the curves compare at equal numbers"
    if a.row.software_version != b.row.software_version:
        yield f"versions of kernelwright differ: {a.row.software_version} and {b.row.software_version}"


def _layers(data: RunData) -> set[str]:
    return {layer for found in data.results for layer in found.row.sandbox}


def _environments(store: Store, a: RunData, b: RunData) -> Iterator[str]:
    """A warning about differences between the machines, from the environments of all verdicts."""
    ours, theirs = _environments_of(store, a), _environments_of(store, b)
    if not ours or not theirs or {e.id for e in ours} == {e.id for e in theirs}:
        return
    told = []
    for name in Environment.model_fields:
        left, right = (sorted({_text(getattr(one, name)) for one in found}) for found in (ours, theirs))
        if left != right:
            told.append(name if name == "extra" else f"{name} {' or '.join(left)} and {' or '.join(right)}")
    yield f"environments differ: {'; '.join(told[:_SHOWN]) or 'each has several'}"


def _environments_of(store: Store, data: RunData) -> Sequence[Environment]:
    return [store.environment(name) for name in dict.fromkeys(one.environment for one in data.judged)]


def _problems(count: int) -> str:
    return "1 problem" if count == 1 else f"{count} problems"
