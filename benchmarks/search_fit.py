"""The constants of the offline Coder's model of schedules, by maximum likelihood over measured spaces.

    python benchmarks/search_fit.py --tables benchmarks/results/*/search --output benchmarks/results/search_fit.json

A Gaussian process says of each table (search_tables.py) how likely its speedups are, given that of the default
schedule. What is fitted is how much each choice matters (weight), by how much a value is expected to be slower than the
default (departure), how widely speedups are spread, and what is noise; with a ridge, so that choices of which little is
known stay near what is assumed of all. Only tables of the open set are read.

Held out: a problem's tables under the constants that were fitted to all other problems', in nats for each kernel,
beside those of all problems together (which flatter themselves), of the constants in use, and of one and the same
weight and departure for all choices. A kernel that several schedules lead to counts once, under the one nearest to the
default: weights are those of choices that make another kernel. A choice that fewer than two problems have keeps what is
assumed of all. The constants that were fitted without a problem are kept beside it, so that it can be searched with
them (search.py --constants).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import search_tables as tables
import torch

from kernelwright.agents import _schedule_model as model
from kernelwright.codegen._schedule import CHOICES
from kernelwright.datasets import find_problem
from kernelwright.records import KnobValue

STEPS, RATE = 120, 0.05  # of Adam (Kingma, Ba, arXiv:1412.6980)
COMMON = 2  # problems that must have a choice
WEIGHT, SPREAD, NOISE = 0.5, 0.15, 0.03  # what fits begin with
LEAST_WEIGHT = 0.1  # that a choice which seems to change nothing still matters
RIDGE_WEIGHT, RIDGE_DEPARTURE = 0.1, 5.0  # on squares of log weights and of departures, in nats for each kernel

Effect = tuple[str, KnobValue]  # a choice and a value of it; the value is None for numbers, whose distance counts


class Landscape(NamedTuple):
    """A table as the model sees it: (kernels, kernels, choices), (kernels, effects) and (kernels,)."""

    problem: str
    chosen: frozenset[str]
    apart: torch.Tensor
    departed: torch.Tensor
    values: torch.Tensor  # log speedups over that of the default schedule


def effects() -> list[Effect]:
    """What departures are fitted for: numbers as a whole, other choices value by value."""
    found: list[Effect] = []
    for knob, values in CHOICES.items():
        numbers = all(type(value) is int for value in values)
        found += [(knob, None)] if numbers else [(knob, value) for value in values[1:]]
    return found


def landscape(table: Mapping[str, Any]) -> Landscape | None:
    """A table's kernels that passed; None where the default schedule is none of them."""
    space, default, rows = table["space"], table["default"], table["kernels"]
    knobs = sorted(space)
    named = [
        (dict(zip(knobs, json.loads(name), strict=True)), row)
        for name, row in table["schedules"].items()
        if name.startswith("[")
    ]
    seen = model.ScheduleModel(space, default, [model.Observation(default, 0.0)], {})
    start = seen._coded([default])
    gaps = seen._apart(seen._coded([schedule for schedule, _ in named]), start)[:, 0, :]
    nearest: dict[int, int] = {}
    for place in np.argsort(gaps.sum(axis=1), kind="stable"):
        nearest.setdefault(named[place][1], int(place))
    kept = [place for row, place in nearest.items() if rows[row]["log_speedup"] is not None]
    base = next((row for schedule, row in named if schedule == default), None)
    if base is None or rows[base]["log_speedup"] is None:
        return None
    schedules = [named[place][0] for place in kept]
    points = seen._coded(schedules)
    chosen = [knob for knob, values in space.items() if len(values) > 1]
    apart = np.zeros((len(kept), len(kept), len(CHOICES)))
    apart[:, :, [list(CHOICES).index(knob) for knob in chosen]] = seen._apart(points, points)
    departed = np.zeros((len(kept), len(effects())))
    for column, (knob, value) in enumerate(effects()):
        if knob in chosen:
            far = gaps[kept, chosen.index(knob)]
            same = [value is None or schedule[knob] == value for schedule in schedules]
            departed[:, column] = np.where(same, far if value is None else far > 0, 0.0)
    values = np.array([rows[named[place][1]]["log_speedup"] - rows[base]["log_speedup"] for place in kept])
    return Landscape(
        table["problem"], frozenset(chosen), torch.tensor(apart), torch.tensor(departed), torch.tensor(values)
    )


class Constants(NamedTuple):
    """What is fitted; weights are kept as logarithms, and so are the deviations."""

    weights: torch.Tensor
    departures: torch.Tensor
    spread: torch.Tensor
    noise: torch.Tensor


def started() -> Constants:
    """What fits begin with."""
    numbers = (
        torch.full((len(CHOICES),), math.log(WEIGHT)),
        torch.zeros(len(effects())),
        torch.tensor(math.log(SPREAD)),
        torch.tensor(math.log(NOISE)),
    )
    return Constants(*(number.double().requires_grad_() for number in numbers))


def in_use() -> Constants:
    """Those of the Coder."""
    traits = {knob: model.CPP_TRAITS.get(knob, model.UNKNOWN) for knob in CHOICES}
    departures = [
        traits[knob].distance if value is None else traits[knob].departures.get(value, 0.0) for knob, value in effects()
    ]
    return Constants(
        torch.tensor([math.log(trait.weight) for trait in traits.values()]).double(),
        torch.tensor(departures).double(),
        torch.tensor(math.log(model.SPREAD)).double(),
        torch.tensor(math.log(model.NOISE)).double(),
    )


def density(seen: Landscape, constants: Constants) -> torch.Tensor:
    """The log density of a table given its default's, in nats for each other kernel.

    Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, equation (2.30), less the default's own part.
    """
    count = len(seen.values)
    likeness = torch.exp(2 * constants.spread - seen.apart @ torch.exp(constants.weights))
    covariance = likeness + torch.exp(2 * constants.noise) * torch.eye(count, dtype=torch.float64)
    root = torch.linalg.cholesky(covariance)
    left = seen.values + seen.departed @ constants.departures
    white = torch.linalg.solve_triangular(root, left[:, None], upper=False)
    logs = (white**2).sum() / 2 + torch.log(torch.diagonal(root)).sum() + count * math.log(2 * math.pi) / 2
    own = torch.log(torch.exp(2 * constants.spread) + torch.exp(2 * constants.noise)) / 2 + math.log(2 * math.pi) / 2
    return (own - logs) / (count - 1)


def fitted(landscapes: Sequence[Landscape], *, alike: bool = False) -> Constants:
    """The constants under which landscapes are most likely, all of them equally.

    Args:
        landscapes: at least one.
        alike: one weight and one departure for all choices.
    """
    problems = {knob: {seen.problem for seen in landscapes if knob in seen.chosen} for knob in CHOICES}
    common = [len(problems[knob]) >= COMMON for knob in CHOICES]
    departing = [len(problems[knob]) >= COMMON for knob, _ in effects()]
    constants = started()
    optimizer = torch.optim.Adam(list(constants), lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        used = _evened(constants) if alike else _kept(constants, common, departing)
        loss = -torch.stack([density(seen, used) for seen in landscapes]).sum()
        loss = loss + RIDGE_WEIGHT * ((used.weights - math.log(WEIGHT)) ** 2).sum()
        loss = loss + RIDGE_DEPARTURE * (used.departures**2).sum()
        loss.backward()
        optimizer.step()
    found = _evened(constants) if alike else _kept(constants, common, departing)
    return Constants(*(number.detach() for number in found))


def _kept(constants: Constants, common: Sequence[bool], departing: Sequence[bool]) -> Constants:
    """Weights no less than the least, and what is assumed of all for what is not common."""
    weights = torch.where(torch.tensor(common), constants.weights.clamp(min=math.log(LEAST_WEIGHT)), math.log(WEIGHT))
    departures = torch.where(torch.tensor(departing), constants.departures, 0.0)
    return Constants(weights, departures, constants.spread, constants.noise)


def _evened(constants: Constants) -> Constants:
    weights, departures, *others = constants
    return Constants(weights.mean().expand_as(weights), departures.mean().expand_as(departures), *others)


def told(constants: Constants) -> dict[str, Any]:
    """Constants as numbers."""
    departures: dict[str, Any] = {}
    for (knob, value), number in zip(effects(), constants.departures.tolist(), strict=True):
        departures.setdefault(knob, {})["distance" if value is None else str(value)] = round(number, 3)
    return {
        "weight": {k: round(math.exp(w), 3) for k, w in zip(CHOICES, constants.weights.tolist(), strict=True)},
        "departure": departures,
        "spread": round(math.exp(float(constants.spread)), 3),
        "noise": round(math.exp(float(constants.noise)), 3),
    }


def traits(found: Mapping[str, Any]) -> dict[str, model.Trait]:
    """Told constants as the Coder's model takes them."""
    made = {}
    for knob, values in CHOICES.items():
        departures = found["departure"].get(knob, {})
        named = {value: departures[str(value)] for value in values if str(value) in departures}
        made[knob] = model.Trait(found["weight"][knob], departures.get("distance", 0.0), named)
    return made


def main() -> int:
    """Fit, leave each problem out in turn, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, nargs="+", required=True, help="folders of search_tables.py")
    parser.add_argument("--output", type=Path, help="a JSON file")
    arguments = parser.parse_args()
    problems = [find_problem(name) for name in tables.OPEN]
    read = [tables.read(tables.path_of(folder, problem)) for folder in arguments.tables for problem in problems]
    made = [landscape(table) for table in read if table is not None]
    landscapes = [seen for seen in made if seen is not None]
    everything = fitted(landscapes)
    scores: dict[str, list[float]] = {"held out": [], "held out, all choices alike": [], "fitted": [], "in use": []}
    without = {}
    for name in dict.fromkeys(seen.problem for seen in landscapes):
        others = [seen for seen in landscapes if seen.problem != name]
        judged = {
            "held out": fitted(others),
            "held out, all choices alike": fitted(others, alike=True),
            "fitted": everything,
            "in use": in_use(),
        }
        without[name] = told(judged["held out"])
        for seen in landscapes:
            if seen.problem == name:
                for line, constants in judged.items():
                    scores[line].append(float(density(seen, constants)))
    report = {
        "tables": len(landscapes),
        "kernels": sum(len(seen.values) for seen in landscapes),
        "nats_a_kernel": {line: round(float(np.mean(values)), 3) for line, values in scores.items()},
        "nats_a_kernel_median": {line: round(float(np.median(values)), 3) for line, values in scores.items()},
        "problems": {knob: len({seen.problem for seen in landscapes if knob in seen.chosen}) for knob in CHOICES},
        "tables_likelier_held_out_than_all_choices_alike": sum(
            ours > theirs
            for ours, theirs in zip(scores["held out"], scores["held out, all choices alike"], strict=True)
        ),
        **told(everything),
    }
    print(json.dumps(report, indent=1))
    report["without"] = without
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
