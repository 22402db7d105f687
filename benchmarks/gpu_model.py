"""The constants of the model of a GPU's time (evaluator/profile/expected.py): fitted, and tried on problems held out.

    python benchmarks/gpu_model.py fit benchmarks/results/h100/gpu_model_facts.jsonl --output RECORD
    python benchmarks/gpu_model.py collect FOLDER TIMES --output FACTS

``fit`` reads the facts of compiled candidates beside their measured times. It fits the constants by a search along one
constant at a time, from fixed starting values. The loss is the mean of absolute errors of logarithms, of all candidates
and again of each problem's candidates about their median, which is what ranks them. Every problem weighs the same. For
the record, five fits leave out a fifth of the problems each, and only predictions for problems left out count. What the
model looks at was chosen with all of these problems in view, so the record flatters its form, though not its constants.

``collect`` makes the facts, with no device: FOLDER holds a file for each problem (id, source, variant, mode,
candidates, schedules, default), TIMES a line for each (id, and k0, k1, ... in microseconds).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, NamedTuple

from kernelwright.evaluator.profile.expected import (
    H100,
    TOLD_APART,
    Device,
    Facts,
    KernelFacts,
    OperatorFacts,
    facts_from,
    level,
    step_us,
)

START = {
    "call_us": 5.0,
    "launch_us": 3.0,
    "memory_tb_s": 2.8,
    "cache_tb_s": 5.5,
    "shared_bytes": 128.0,
    "collision": 8.0,
    "spill_tb_s": 2.0,
    "wait_us": 0.8,
    "instruction_cycles": 4.0,
    "product_tflops": 45.0,
    "convolution_tflops": 25.0,
    "library_tb_s": 1.5,
}
FIRST_STEP, LAST_STEP = 0.4, 0.01  # of a constant's logarithm
FOLDS, SEED, PERMUTATIONS = 5, 0, 2000
NEAR = 1.05  # times whose ratio is smaller are equal
FEWEST = 3  # schedules of a problem that is ranked
DIGITS = 4  # of a constant
OF_OWN_PRODUCTS = frozenset({"BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "GEMM_WARPS", "GEMM_STAGES"})
CHANCE = 0.05  # above it a choice counts as not foretold

Problems = Mapping[str, Sequence["Timed"]]


class Timed(NamedTuple):
    """A candidate: what of its schedule is not the default's, its microseconds, and its facts."""

    changes: Mapping[str, Any]
    us: float
    facts: Facts


# ------------------------------------------------------------------------------------------------------- the file


def read(path: Path) -> dict[str, list[Timed]]:
    """The candidates of a file of facts, by problem."""
    head, *rows = (json.loads(line) for line in path.read_text().splitlines())
    found: dict[str, list[Timed]] = {}
    for row in rows:
        named = [dict(zip(head["kernel" if len(v) > 4 else "operator"], v, strict=True)) for v in row["steps"]]
        steps = facts_from(named)
        found[row["problem"]] = [
            Timed(c["changes"], c["us"], tuple(steps[place] for place in c["steps"])) for c in row["candidates"]
        ]
    return found


def collect(folder: Path, times: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file of facts."""
    measured = {row["id"]: row for row in map(json.loads, times.read_text().splitlines())}
    yield {
        "kernel": [field.name for field in fields(KernelFacts)],
        "operator": [field.name for field in fields(OperatorFacts)],
    }
    for path in sorted(folder.glob("*.json")):
        given = json.loads(path.read_text())
        row = measured.get(given["id"], {})
        payload = {key: given[key] for key in ("variant", "mode")} | {"problem": given["source"]}
        payload |= {"sources": given["candidates"], "architectures": [90]}
        steps: dict[Any, int] = {}
        candidates = []
        for number, found in enumerate(_facts(payload)):
            if found is not None and row.get(f"k{number}"):
                schedule, default = given["schedules"][number], given["default"]
                places = [steps.setdefault(step, len(steps)) for step in facts_from(found)]
                changes = {name: value for name, value in schedule.items() if value != default[name]}
                candidates.append({"changes": changes, "us": row[f"k{number}"], "steps": places})
        if candidates:
            plain = [[_plain(value) for value in astuple(step)] for step in steps]
            yield {"problem": given["id"], "steps": plain, "candidates": candidates}


def _facts(payload: Mapping[str, Any]) -> list[Any]:
    code = "import json, sys; from kernelwright.evaluator.worker.triton.facts import facts; "
    code += "json.dump(facts(json.load(sys.stdin)), sys.stdout)"
    done = subprocess.run([sys.executable, "-c", code], input=json.dumps(payload), capture_output=True, text=True)
    return json.loads(done.stdout)["candidates"] if done.returncode == 0 else []


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# -------------------------------------------------------------------------------------------------------- the fit


class Predictor:
    """Microseconds of candidates under one set of constants. Steps that occur again are computed once."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._known: dict[Any, float] = {}

    def __call__(self, facts: Facts) -> float:
        for step in facts:
            if step not in self._known:
                self._known[step] = step_us(step, self._device)
        return self._device.call_us + sum(self._known[step] for step in facts)


def loss(problems: Problems, device: Device) -> float:
    """The mean absolute error of logarithms, and that about each problem's median."""
    predict = Predictor(device)
    total = 0.0
    for timed in problems.values():
        errors = [math.log(predict(one.facts) / one.us) for one in timed]
        middle = statistics.median(errors)
        total += statistics.fmean(abs(e) + abs(e - middle) for e in errors)
    return total / len(problems)


def fit(problems: Problems) -> Device:
    """The constants that are best for these problems."""
    device = H100._replace(**START)
    best, steps = loss(problems, device), dict.fromkeys(START, FIRST_STEP)
    while max(steps.values()) > LAST_STEP:
        for name, step in steps.items():
            for factor in (math.exp(step), math.exp(-step)):
                tried = device._replace(**{name: getattr(device, name) * factor})
                if (found := loss(problems, tried)) < best - 1e-9:
                    device, best = tried, found
                    break
            else:
                steps[name] = step / 2
    return device._replace(**{name: float(f"{getattr(device, name):.{DIGITS}g}") for name in START})


def held_out(problems: Problems) -> dict[str, list[float]]:
    """Predicted microseconds of each problem's candidates, by constants that were fitted without the problem."""
    names = sorted(problems)
    random.Random(SEED).shuffle(names)
    found: dict[str, list[float]] = {}
    for fold in range(FOLDS):
        out = set(names[fold::FOLDS])
        predict = Predictor(fit({name: timed for name, timed in problems.items() if name not in out}))
        found |= {name: [predict(one.facts) for one in problems[name]] for name in out}
    return found


# ---------------------------------------------------------------------------------------------------- the record


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 0; equal values share the mean of theirs."""
    placed = sorted(values)
    return [placed.index(v) + (placed.count(v) - 1) / 2 for v in values]


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's rank correlation; 0 if one side is constant."""
    x, y = ranks(a), ranks(b)
    return statistics.correlation(x, y) if len(set(x)) > 1 and len(set(y)) > 1 else 0.0


def within(
    problems: Problems, predicted: Mapping[str, Sequence[float]], chosen: Callable[[str], bool]
) -> dict[str, Any]:
    """The rank correlation within a problem over its schedules, and how often chance reaches its mean."""
    pairs = {n: (list(predicted[n]), [one.us for one in problems[n]]) for n in sorted(problems) if chosen(n)}
    found = {name: spearman(*pair) for name, pair in pairs.items()}
    mean = statistics.fmean(found.values())
    draw = random.Random(SEED)
    ranked = [(ranks(a), ranks(b)) for a, b in pairs.values()]
    reached = 0
    for _ in range(PERMUTATIONS):
        total = 0.0
        for a, b in ranked:
            draw.shuffle(a)
            total += statistics.correlation(a, b) if len(set(a)) > 1 and len(set(b)) > 1 else 0.0
        reached += total / len(ranked) >= mean
    return {
        "problems": len(found),
        "mean_spearman": round(mean, 3),
        "share_above_0": round(statistics.fmean(rho > 0 for rho in found.values()), 3),
        "p": (1 + reached) / (1 + PERMUTATIONS),
    }


def picks(problems: Problems, predicted: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """How often a pick of the schedules is within 5% of the best, and how much slower it is by geometric mean."""
    model, default, chance, slower = [], [], [], {"model": [], "default": [], "chance": []}
    for name, timed in problems.items():
        if len(timed) < 2:
            continue
        best = min(one.us for one in timed)
        place = min(range(len(timed)), key=lambda at: (level(predicted[name][at]), at))
        good = [one.us <= NEAR * best for one in timed]
        model.append(good[place])
        default.append(good[0])
        chance.append(statistics.fmean(good))
        slower["model"].append(math.log(timed[place].us / best))
        slower["default"].append(math.log(timed[0].us / best))
        slower["chance"].append(statistics.fmean(math.log(one.us / best) for one in timed))
    shares = {"model": model, "default": default, "chance": chance}
    return {
        "problems": len(model),
        "within_5_percent": {name: round(statistics.fmean(values), 3) for name, values in shares.items()},
        "slower_than_best": {n: round(math.exp(statistics.fmean(v)), 3) for n, v in slower.items()},
    }


def classes(problems: Problems, predicted: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """For each choice the pairs of schedules that differ in it alone and by 5% or more in time.

    Where one of them leaves products to a library, constants of own products do not count.

    ``told``: those that the model tells apart; ``right``: those of them whose order it foretells; ``p``: the chance of
    as many with a fair coin.
    """
    found: dict[str, list[int]] = {}
    for name, timed in problems.items():
        for a in range(len(timed)):
            for b in range(a):
                x, y = timed[a].changes, timed[b].changes
                apart = [k for k in {*x, *y} if x.get(k) != y.get(k)]
                apart = [k for k in apart if k not in OF_OWN_PRODUCTS] if "gemm" in apart else apart
                if len(apart) != 1 or max(timed[a].us, timed[b].us) < NEAR * min(timed[a].us, timed[b].us):
                    continue
                ratio = math.log(predicted[name][a] / predicted[name][b])
                row = found.setdefault(apart[0], [0, 0, 0])
                row[0] += 1
                row[1] += abs(ratio) >= TOLD_APART
                row[2] += abs(ratio) >= TOLD_APART and (ratio > 0) == (timed[a].us > timed[b].us)
    return {
        choice: {"pairs": pairs, "told": told, "right": right, "p": round(_coin(told, right), 4)}
        for choice, (pairs, told, right) in sorted(found.items())
    }


def _coin(throws: int, heads: int) -> float:
    """The chance of at least so many heads of a fair coin."""
    return sum(math.comb(throws, k) for k in range(heads, throws + 1)) / 2**throws


def record(problems: Problems) -> dict[str, Any]:
    """The constants, and what the model is worth on problems that it was not fitted to."""
    predicted = held_out(problems)
    pairs = [
        (math.log(p), math.log(one.us))
        for n in sorted(problems)
        for p, one in zip(predicted[n], problems[n], strict=True)
    ]
    errors = [abs(a - b) for a, b in pairs]
    spread = {name for name, t in problems.items() if max(o.us for o in t) > NEAR * min(o.us for o in t)}
    ranked = {name for name, timed in problems.items() if len(timed) >= FEWEST}
    device, choices = fit(problems), classes(problems, predicted)
    return {
        "constants": {name: getattr(device, name) for name in START},
        "candidates": len(pairs),
        "problems": len(problems),
        "within": within(problems, predicted, lambda name: name in ranked),
        "within_where_times_differ": within(problems, predicted, lambda name: name in ranked & spread),
        "across": {
            "correlation_of_logs": round(statistics.correlation(*zip(*pairs, strict=True)), 3),
            "spearman": round(spearman(*zip(*pairs, strict=True)), 3),
            "median_error": round(math.exp(statistics.median(errors)) - 1, 3),
            "within_a_factor_of_1.5": round(statistics.fmean(error < math.log(1.5) for error in errors), 3),
        },
        "pick": picks(problems, predicted),
        "choices": choices,
        "foretold": [name for name, found in choices.items() if found["p"] < CHANCE],
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    fitting = commands.add_parser("fit")
    fitting.add_argument("facts", type=Path)
    collecting = commands.add_parser("collect")
    collecting.add_argument("folder", type=Path)
    collecting.add_argument("times", type=Path)
    for command in (fitting, collecting):
        command.add_argument("--output", type=Path)
    asked = parser.parse_args()
    if asked.command == "collect":
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in collect(asked.folder, asked.times))
    else:
        text = json.dumps(record(read(asked.facts)), indent=2) + "\n"
        print(text, end="")
    if asked.output:
        asked.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
