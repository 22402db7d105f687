"""The figures of a board: each entrant's results on a suite's problems, over one baseline on one device."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelwright.errors import UsageError
from kernelwright.evaluator import bootstrap_interval, sol_score
from kernelwright.records.problems import VARIANT_MARK
from kernelwright.store import Store

_DTYPE = re.compile(r"\b(float64|float32|bfloat16|float16|int64|int32|int16|int8|uint8|bool)\[")
SORTS = ("mean", "fast_0", "fast_1", "fast_1.5", "fast_2", "sol", "correct", "coverage", "own", "cost", "entrant")
THRESHOLDS = (0.0, 1.0, 1.5, 2.0)


class Place(NamedTuple):
    """The key of a board: a suite, a device and a baseline."""

    suite: str
    environment: str
    baseline: str


class Filters(NamedTuple):
    """The filters of a board; None does not filter.

    ``sizes``: ``own`` for problems as their files have them, ``changed`` for those in other sizes or variants.
    ``until``: show the board as of this ISO date or time, by today's verdicts.
    """

    level: int | None = None
    category: str | None = None
    backend: str | None = None
    dtype: str | None = None
    until: str | None = None
    sizes: str = "own"


class Entry(NamedTuple):
    """An entrant's row.

    Attributes:
        mean: geometric mean of its speedups over all problems of the board, with a 95% interval over problems. A
            problem without a kernel counts as 1. ``solved_mean``: the mean over problems with a kernel.
        fast: by p, the share of the board's problems that it solved more than p times as fast as the baseline.
        correct_rate: share of its judged candidates that passed. ``coverage``: share of problems that it tried. Both
            are None with ``until``, because attempts are counted without dates.
        confirmed: number of its counted kernels that were confirmed in fresh processes.
        cost_usd: cost of the runs that wrote them; None if unknown, as with ``until``.
    """

    author: str
    recipe: str
    mean: float
    low: float
    high: float
    solved_mean: float | None
    fast: Mapping[str, float]
    sol: float | None
    correct_rate: float | None
    coverage: float | None
    own_share: float | None
    cost_usd: float | None
    solved: int
    confirmed: int
    judged: int
    passed: int


class Board(NamedTuple):
    """A board with its rows, its problems, and the possible values of its filters."""

    place: Place
    filters: Filters
    entries: Sequence[Entry]
    problems: Sequence[str]
    best: Mapping[str, Mapping[str, Any]]  # by problem: the row of the kernel that ranks first
    choices: Mapping[str, Sequence[Any]]


def places_of(store: Store) -> list[dict[str, Any]]:
    """The boards that have kernels, the fullest first: suite, environment, device, baseline, problems."""
    found: dict[Place, dict[str, Any]] = {}
    for row in store.board_places():
        key = Place(row["suite"], row["environment"], row["baseline"])
        known = found.setdefault(key, {**row, "backends": []})
        known["backends"].append(row["backend"])
        known["problems"] = max(known["problems"], row["problems"])
    return list(found.values())


def choose_place(
    places: Sequence[Mapping[str, Any]], suite: str | None, environment: str | None, baseline: str | None
) -> Place | None:
    """The wanted board. Of several that fit, the one with the most problems; at a tie, the one against eager.

    Raises:
        UsageError: no board fits.
    """
    wanted = {"suite": suite, "environment": environment, "baseline": baseline}
    fitting = [place for place in places if all(value in (None, place[key]) for key, value in wanted.items())]
    if not fitting:
        if any(wanted.values()):
            said = ", ".join(f"{key} {value!r}" for key, value in wanted.items() if value)
            raise UsageError(f"no kernel is on a board of {said}", hint="leave one of them out")
        return None
    best = max(fitting, key=lambda place: (place["problems"], place["baseline"] == "eager"))
    return Place(best["suite"], best["environment"], best["baseline"])


def board_of(store: Store, place: Place, filters: Filters, costs: Mapping[tuple[str, str], float | None]) -> Board:
    """A board.

    Args:
        costs: dollars by author and recipe; an entrant that is missing cost nothing.
    """
    rows = store.entrants(place.environment, place.baseline, backend=filters.backend, until=filters.until)
    dtypes = {row["problem"]: dtype_of(row["inputs"]) for row in rows}
    suite = [row for row in store.problems_in_use() if row["suite"] == place.suite]
    asked = [row for row in suite if _is_asked(row, filters, dtypes)]
    names = [row["problem"] for row in asked]
    known = set(names)
    rows = [row for row in rows if row["problem"] in known]
    counts = [] if filters.until else store.tallies(environment=place.environment)
    tallies = [row for row in counts if row["problem"] in known and filters.backend in (None, row["backend"])]
    by_entrant: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_entrant[row["author"], row["recipe"]].append(row)
    counted: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in tallies:
        counted[row["author"], row["recipe"]].append(row)
    entries = [
        _entry(
            entrant,
            by_entrant.get(entrant, []),
            None if filters.until else counted.get(entrant, []),
            len(names),
            None if filters.until else costs.get(entrant, 0.0),
        )
        for entrant in sorted({*by_entrant, *counted})
    ]
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        held = best.get(row["problem"])
        if held is None or _standing(row) > _standing(held):
            best[row["problem"]] = row
    choices = {
        "level": sorted({row["level"] for row in suite}),
        "category": sorted({row["category"] for row in suite}),
        "dtype": sorted({dtype for dtype in dtypes.values() if dtype}),
    }
    return Board(place, filters, entries, names, best, choices)


def sort_entries(entries: Iterable[Entry], sort: str, *, ascending: bool = False) -> list[Entry]:
    """Entries sorted by a column; entries without a value come last."""

    def key(entry: Entry) -> tuple[bool, float]:
        value = _figure(entry, sort)
        return (value is None, 0.0 if value is None else value if ascending else -value)

    named = sorted(entries, key=lambda entry: (entry.author, entry.recipe), reverse=sort == "entrant" and not ascending)
    return named if sort == "entrant" else sorted(named, key=key)


def progress_of(store: Store, place: Place, problems: Sequence[str], filters: Filters) -> list[dict[str, Any]]:
    """The board's best mean over time: a point whenever a problem's best kernel changed.

    The mean is geometric, over all problems. A problem counts with its best confirmed kernel so far, else with the best
    one of the searches. It counts as 1 without a kernel, and if its best kernel is slower than the baseline.
    """
    known = dict.fromkeys(problems, 0.0)
    confirmed: dict[str, float] = {}
    searched: dict[str, float] = {}
    points = []
    total = 0.0
    for row in store.progress(place.environment, place.baseline, backend=filters.backend):
        problem = row["problem"]
        if problem not in known or (filters.until and row["created_at"] >= filters.until):
            continue
        into = confirmed if row["confirmed"] else searched
        into[problem] = max(into.get(problem, 0.0), row["median"])
        value = max(0.0, _log(confirmed.get(problem, searched.get(problem, 1.0))))
        if value != known[problem]:
            total += value - known[problem]
            known[problem] = value
            points.append({"at": row["created_at"], "mean": math.exp(total / len(known)), "by": row["author"]})
    return points


def dtype_of(inputs: str) -> str:
    """The first dtype in a description of inputs; empty if it contains none."""
    found = _DTYPE.search(inputs or "")
    return found[1] if found else ""


def _is_asked(row: Mapping[str, Any], filters: Filters, dtypes: Mapping[str, str]) -> bool:
    changed = VARIANT_MARK in row["problem"]
    return (
        changed == (filters.sizes == "changed")
        and filters.level in (None, row["level"])
        and filters.category in (None, row["category"])
        and filters.dtype in (None, dtypes.get(row["problem"]))
    )


def _standing(row: Mapping[str, Any]) -> tuple[int, float]:
    return row["confirmed"], row["low"]


def _entry(
    entrant: tuple[str, str],
    rows: Sequence[Mapping[str, Any]],
    tallies: Sequence[Mapping[str, Any]] | None,
    problems: int,
    cost_usd: float | None,
) -> Entry:
    best: dict[str, Mapping[str, Any]] = {}
    for row in rows:  # the best of several languages counts
        held = best.get(row["problem"])
        if held is None or _standing(row) > _standing(held):
            best[row["problem"]] = row
    speedups = [row["median"] for row in best.values()]
    logs = np.zeros(problems)
    logs[: len(speedups)] = [_log(speedup) for speedup in speedups]
    mean, low, high = _mean(logs)
    sols = [score for row in best.values() if (score := _sol(row)) is not None]
    shares = [row["own_share"] for row in best.values() if row["own_share"] is not None]
    judged = sum(row["evaluations"] for row in tallies or ())
    passed = sum(row["evaluations"] for row in tallies or () if row["status"] == "PASSED")
    tried = {row["problem"] for row in tallies or ()} | set(best)
    return Entry(
        author=entrant[0],
        recipe=entrant[1],
        mean=mean,
        low=low,
        high=high,
        solved_mean=math.exp(float(np.mean(logs[: len(speedups)]))) if speedups else None,
        fast={f"{p:g}": sum(s > p for s in speedups) / problems for p in THRESHOLDS},
        sol=sum(sols) / len(sols) if sols else None,
        correct_rate=passed / judged if judged else None,
        coverage=None if tallies is None else len(tried) / problems,
        own_share=sum(shares) / len(shares) if shares else None,
        cost_usd=cost_usd,
        solved=len(best),
        confirmed=sum(row["confirmed"] for row in best.values()),
        judged=judged,
        passed=passed,
    )


def _log(speedup: float) -> float:
    """A speedup's logarithm. A speedup of 0 or infinity (times that no clock resolves) counts as 1."""
    return math.log(speedup) if 0.0 < speedup < math.inf else 0.0


def _mean(logs: np.ndarray) -> tuple[float, float, float]:
    """The geometric mean of speedups given by their logarithms, with a 95% bootstrap interval over problems."""
    low, high = bootstrap_interval(logs)
    return math.exp(float(np.mean(logs))), math.exp(low), math.exp(high)


def _sol(row: Mapping[str, Any]) -> float | None:
    distance, time_ms = row["distance"], row["latency_ms"]
    if not distance or distance <= 0:
        return None
    light_ms, baseline_ms = time_ms / distance, time_ms * row["median"]
    return sol_score(time_ms, baseline_ms, light_ms) if baseline_ms > light_ms else None


def _figure(entry: Entry, sort: str) -> float | None:
    if sort.startswith("fast_"):
        return entry.fast[sort.removeprefix("fast_")]
    figures = {
        "mean": entry.mean,
        "sol": entry.sol,
        "correct": entry.correct_rate,
        "coverage": entry.coverage,
        "own": entry.own_share,
        "cost": entry.cost_usd,
    }
    return figures[sort]
