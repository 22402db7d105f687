"""Searches over tables of measured kernels: how many evaluations each needs, and what it ends with.

    pip install -e '.[plots]'
    python benchmarks/search.py --tables benchmarks/results/MACHINE/search --output OUTPUT.json
    python benchmarks/search.py ... --set sealed          # other problems: when nothing is changed any more
    python benchmarks/search.py ... --set sealed-larger
    python benchmarks/search.py ... --confirm --plot docs/images/search.svg
    python benchmarks/search.py ... --constants benchmarks/results/search_fit.json    # fitted to the others

The recipes `default` and `best-of-n` run with the offline Coder and with everything real but the referee, whose verdict
on a kernel is what was measured of it (search_tables.py) and noise: 1.5% of a session as a whole, 1% of a race. Beside
them, `random` draws any kernel of the space, each once. All have as many evaluations on a problem: half as many as it
has kernels, 32 at most and 8 at least; races and repetitions count. Curves of several problems are joined by the share
of the evaluations that is spent.

What counts of a search is the measured speedup of the kernel that it would name as its best, after so many evaluations:
not that of the luckiest look. With ``--constants``, each problem is searched with the constants that were fitted to the
other problems alone (search_fit.py). Intervals (95%) are over seeds, by bootstrap, of means over problems.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import multiprocessing
import random
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import search_fit
import search_tables as tables

from kernelwright import codegen
from kernelwright.agents import StepContext, Workbench
from kernelwright.agents import _schedule_model as model
from kernelwright.agents import offline_coder as _offline_coder
from kernelwright.agents.nodes import context_of
from kernelwright.agents.registry import coders
from kernelwright.agents.roles import Proposal
from kernelwright.agents.step import run_step
from kernelwright.agents.step_state import Judged, StepTools
from kernelwright.agents.strategy import OneAtATime, Strategy
from kernelwright.campaign import load_recipe
from kernelwright.config import Settings
from kernelwright.datasets import find_problem
from kernelwright.evaluator import Confirm, Referee, environment
from kernelwright.evaluator.figures import intervals as statistics
from kernelwright.evolution import Evolution, Search, SearchPlan
from kernelwright.records import (
    Candidate,
    Evaluation,
    Interval,
    Problem,
    Profile,
    Speedup,
    Stage,
    Status,
    Timing,
    Verdict,
)

MOST, LEAST = 32, 8  # evaluations
SHARES = 64  # points of a joined curve
SEEDS = 20
SESSION = 0.015  # deviation of what one evaluation gets wrong as a whole
PAIR = 0.03  # of one pair of windows
BOUND = 0.03  # what "faster" has to exceed
NOISE = 0.01  # differences of speedups below this are none
LINES = ("default", "best-of-n", "random")
COLOURS = {"default": "#1f6feb", "best-of-n": "#d9730d", "random": "#6e7781"}


# ------------------------------------------------------------------------------------------------ a world of tables


@dataclass
class World:
    """One problem's table, with the kernels' sources as the generator writes them now."""

    problem: Problem
    table: Mapping[str, Any]
    generated: Mapping[str, codegen.Generated]
    replies: Mapping[str, Mapping[str, Any]]
    constants: Mapping[str, Any] | None = None  # of the Coder's model, in place of those in use
    rows: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        found = {}
        for name, generated in self.generated.items():
            if name not in self.table["schedules"]:
                raise SystemExit(f"{self.problem.id}: the generator writes another kernel than was measured: {name}")
            found[generated.source] = self.table["schedules"][name]
        self.rows = found

    @property
    def budget(self) -> int:
        """Evaluations of a search."""
        return min(max(len(self.table["kernels"]) // 2, LEAST), MOST)

    def row(self, candidate: Candidate) -> Mapping[str, Any]:
        """What was measured of a kernel."""
        found: Mapping[str, Any] = self.table["kernels"][self.rows[candidate.source]]
        return found

    def truth(self, candidate: Candidate) -> float:
        """The log of its measured speedup; 0, that of the reference, for one that failed."""
        return float(self.row(candidate)["log_speedup"] or 0.0)

    def call(self, entry: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """What a sandboxed tool answered when the table was read."""
        return dict(self.replies[entry])

    def write(self, graph: Any, schedule: Mapping[str, Any], *, backend: str) -> codegen.Generated:
        """The generator, from memory."""
        name = tables.key(self.table["space"], schedule)
        if name not in self.generated:
            raise codegen.CodegenError("no kernel for this schedule")
        return self.generated[name]


def read_world(folder: Path, name: str, referee: Referee) -> World:
    """A problem's table and the kernels of its space."""
    problem = find_problem(name)
    table = tables.read(tables.path_of(folder, problem))
    if table is None or any("status" not in row for row in table["kernels"]):
        raise SystemExit(f"{name} is not measured yet: python benchmarks/search_tables.py --folder {folder} {name}")
    replies: dict[str, Mapping[str, Any]] = {}
    with referee.open(problem, baselines=["eager"]) as session:

        def call(entry: str, payload: dict[str, Any]) -> dict[str, Any]:
            reply = session.call(entry, payload)
            replies[entry] = reply
            return reply

        return World(problem, table, tables.written(problem, call, table["space"]), replies)


class Verdicts:
    """The referee of a world: what was measured, and noise."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._rng = np.random.default_rng(seed)
        self._environment = environment(1)
        self.count = 0

    def judge(self, candidate: Candidate, rivals: Sequence[Candidate] = ()) -> Evaluation:
        """One evaluation."""
        self.count += 1
        row = self._world.row(candidate)
        passed = row["status"] == "PASSED"
        value = self._world.truth(candidate) + self._rng.normal(0, SESSION)
        median, low, high = statistics.LogInterval(value, value - 2 * SESSION, value + 2 * SESSION).ratios()
        timing = Timing(
            latency_ms=Interval(median=1 / median, low=1 / high, high=1 / low),
            processes=1,
            pairs=24,
            threads=1,
            confirmed=False,
            noise_bound=BOUND,
            speedup={"eager": Speedup(median=median, low=low, high=high, faster=low > 1 + BOUND)},
            rivals={rival.sha256: self._race(candidate, rival) for rival in rivals},
        )
        verdict = Verdict(
            candidate=candidate.sha256,
            problem=candidate.problem_id,
            backend="cpp",
            stage=Stage.TIMED if passed else Stage.COMPILED,
            failed_stage=None if passed else "check",
            status=Status(row["status"]),
            reason="" if passed else "it failed when it was measured",
            timing=timing if passed else None,
            own_kernel_share=row["own_share"],
            profile=Profile(rung="table", bound=row.get("bound", "unknown"), metrics=row.get("metrics", {})),
            environment=self._environment.id,
            seconds={"all": row["seconds"]},
        )
        return Evaluation(candidate=candidate, verdict=verdict, environment=self._environment)

    def judge_unless(
        self, candidate: Candidate, *, rivals: Sequence[Candidate] = (), known: Collection[str] | None = None
    ) -> Judged:
        """One evaluation, unless the kernel is known."""
        code = f"kernel {self._world.rows[candidate.source]}"
        return Judged(None if code in (known or ()) else self.judge(candidate, rivals), code)

    def _race(self, candidate: Candidate, rival: Candidate) -> Speedup:
        race = statistics.Race(noise_bound=BOUND, most_pairs=96)
        difference = self._world.truth(candidate) - self._world.truth(rival) + self._rng.normal(0, PAIR / 3)
        while race.decision is None:
            race.add(difference + self._rng.normal(0, PAIR))
        median, low, high = race.interval().ratios()
        return Speedup(median=median, low=low, high=high, faster=race.faster)


class Ledger:
    """What the step keeps, in memory."""

    def __init__(self) -> None:
        self._proposals: dict[str, Candidate] = {}
        self._evaluations: list[tuple[Evaluation, str, Mapping[str, Any]]] = []

    def saved_state(self) -> None:
        """No process dies here."""

    def save_state(self, state: Any) -> None:
        """No process dies here."""

    def save_proposal(self, candidate: Candidate) -> str:
        """By its hash."""
        self._proposals[candidate.sha256] = candidate
        return candidate.sha256

    def proposal(self, key: str) -> Candidate:
        """What was saved."""
        return self._proposals[key]

    def find_evaluation(self, candidate: Candidate) -> None:
        """No process dies here."""

    def find_again(self, *asked: Any, **named: Any) -> None:
        """No process dies here."""

    def record(self, evaluation: Evaluation, *, purpose: str = "search", action: Any = None, **more: Any) -> str:
        """Append; its number is its id."""
        self._evaluations.append((evaluation, purpose, action or {}))
        return str(len(self._evaluations) - 1)

    def evaluation(self, evaluation_id: str) -> Evaluation:
        """By its number."""
        return self._evaluations[int(evaluation_id)][0]

    def action(self, evaluation_id: str) -> Mapping[str, Any]:
        """By its number."""
        return self._evaluations[int(evaluation_id)][2]

    def add_duplicate(self, duplicate: Any) -> None:
        """The state has it."""

    def add_fruitless(self, fruitless: Any) -> None:
        """The state has it."""


class AnyKernel:
    """Draws kernels of the space, each once."""

    name = "random"
    backends = frozenset({"cpp"})

    def __init__(self, world: World, seed: int) -> None:
        sources = sorted({world.generated[row["name"]].source for row in world.table["kernels"]})
        random.Random(seed).shuffle(sources)
        self._sources = sources

    def propose(self, context: StepContext) -> Proposal:
        """The next one."""
        number = len(context.attempts)
        if number >= len(self._sources):
            return Proposal(None, "the space is exhausted")
        candidate = Candidate(problem_id=context.problem.id, source=self._sources[number], backend="cpp")
        return Proposal(candidate, "drawn", {"origin": "new"})


# --------------------------------------------------------------------------------------------------------- searching


def curve(world: World, line: str, seed: int) -> tuple[list[float], str]:
    """Log speedups of what the search would name as its best after 1, 2... evaluations, and its last best's source."""
    verdicts, ledger, budget = Verdicts(world, seed), Ledger(), world.budget
    strategy: Strategy = OneAtATime()
    coder: Any = AnyKernel(world, seed)
    if line != "random":
        plan = load_recipe(line).search
        coder, strategy = coders.build("offline"), evolution(plan or SearchPlan(), f"{seed}/{world.problem.id}")
    tools = StepTools(
        problem=world.problem,
        coder=coder,
        judge=None,
        evaluate=verdicts.judge_unless,
        ledger=ledger,  # type: ignore[arg-type]
        bench=Workbench(world.call),
        strategy=strategy,
        should_stop=lambda: "budget" if verdicts.count >= budget else "",
    )
    known: dict[int, tuple[float, str]] = {}

    def told(node: str, state: Any) -> None:
        if node in ("judge", "again") and verdicts.count not in known:
            ranked = strategy.ranking(context_of(tools, state))
            best = ranked[0].candidate if ranked else None
            known[verdicts.count] = (0.0, "") if best is None else (world.truth(best), best.source)

    with replaced(world):
        run_step(tools, run_id="R", problem_id=world.problem.id, rounds=4 * budget, on_update=told)
    values, last = [], (0.0, "")
    for number in range(1, budget + 1):
        last = known.get(number, last)
        values.append(last[0])
    return values, last[1]


def evolution(plan: SearchPlan, seed: str) -> Evolution:
    """The search that a recipe sets up."""
    return Evolution(lambda: Search(plan, seed=seed, backend="cpp", baseline="eager"))


@contextmanager
def replaced(world: World) -> Iterator[None]:
    """The generator, and the space that the Coder knows, are those of the table."""
    with ExitStack() as stack:
        stack.enter_context(tables.restricted(world.table["space"]))
        stack.enter_context(mock.patch.object(codegen, "generate", world.write))
        if world.constants is not None:
            stack.enter_context(mock.patch.object(_offline_coder, "CPP_TRAITS", search_fit.traits(world.constants)))
            stack.enter_context(mock.patch.object(model, "SPREAD", world.constants["spread"]))
            stack.enter_context(mock.patch.object(model, "NOISE", world.constants["noise"]))
        yield


def work(job: tuple[World, str, int]) -> tuple[str, str, int, list[float], str]:
    """One curve, in a process of its own."""
    world, line, seed = job
    return (world.problem.id, line, seed, *curve(world, line, seed))


# ---------------------------------------------------------------------------------------------------------- summaries


def joined(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    """Mean over problems, (seeds, SHARES), by the share of the evaluations that is spent."""
    shares = np.arange(1, SHARES + 1) / SHARES
    parts = [
        values[:, np.maximum(np.floor(shares * values.shape[1] + 1e-9).astype(int), 1) - 1]
        for values in curves.values()
    ]
    return np.asarray(np.mean(parts, axis=0))


def summary(curves: Mapping[str, Mapping[str, np.ndarray]], rng: np.random.Generator) -> dict[str, Any]:
    """The figures. ``curves``: by line and problem, (seeds, evaluations) log speedups."""
    problems = list(curves["default"])
    means = {line: joined(curves[line]) for line in LINES}
    draws = [_resampled(means, rng) for _ in range(2000)]
    return {
        "geometric_mean": {line: _three([math.exp(d[line][-1]) for d in draws], means[line]) for line in LINES},
        "share_of_evaluations_to_reach_best_of_n": {
            **_interval([_first(d["default"], d["best-of-n"][-1]) / SHARES for d in draws]),
            "mean": _first(means["default"].mean(axis=0), means["best-of-n"].mean(axis=0)[-1]) / SHARES,
        },
        "problems": {name: _against(curves, name, rng) for name in problems},
    }


def _resampled(means: Mapping[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    count = len(means["default"])
    return {line: values[rng.integers(count, size=count)].mean(axis=0) for line, values in means.items()}


def _first(values: np.ndarray, target: float) -> int:
    """Evaluations after which a curve reaches a target; one more than there are where it never does."""
    reached = np.nonzero(values >= target)[0]
    return int(reached[0]) + 1 if len(reached) else len(values) + 1


def _interval(values: Sequence[float]) -> dict[str, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return {"low": round(float(low), 4), "high": round(float(high), 4)}


def _three(values: Sequence[float], curves: np.ndarray) -> dict[str, float]:
    return {"mean": round(math.exp(float(curves[:, -1].mean())), 4), **_interval(values)}


def _against(curves: Mapping[str, Mapping[str, np.ndarray]], name: str, rng: np.random.Generator) -> dict[str, Any]:
    """One problem: final speedups, and the difference of default to random search, as a ratio."""
    finals = {line: curves[line][name][:, -1] for line in LINES}
    count = len(finals["default"])
    ratios = [
        math.exp(
            finals["default"][rng.integers(count, size=count)].mean()
            - finals["random"][rng.integers(count, size=count)].mean()
        )
        for _ in range(2000)
    ]
    found = _interval(ratios)
    return {
        **{line: round(math.exp(float(values.mean())), 4) for line, values in finals.items()},
        "default_over_random": found,
        "behind_random": found["high"] < math.exp(-NOISE),
        "reaches_best_of_n_after": _first(
            curves["default"][name].mean(axis=0), curves["best-of-n"][name].mean(axis=0)[-1] - 1e-9
        ),
    }


# --------------------------------------------------------------------------------------------------------------- main


def main() -> int:
    """Run all searches on all tables of a set; print and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--set", choices=tuple(tables.SETS), default="open")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--constants", type=Path, help="what search_fit.py wrote")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--confirm", action="store_true", help="confirm the last winners on this machine")
    parser.add_argument("--output", type=Path, help="a JSON file; other sets that are in it stay")
    parser.add_argument("--plot", type=Path, help="an SVG file")
    arguments = parser.parse_args()
    names = tables.SETS[arguments.set]
    with Referee(Settings(baselines=("eager",))) as referee:
        worlds = [read_world(arguments.tables, name, referee) for name in names]
        if arguments.constants:
            fitted = json.loads(arguments.constants.read_text())
            worlds = [
                dataclasses.replace(world, constants=fitted["without"].get(world.problem.id, fitted))
                for world in worlds
            ]
        curves, winners = all_curves(worlds, arguments)
        report = {
            "environment": environment(1).model_dump(mode="json"),
            "seeds": arguments.seeds,
            "evaluations": {w.problem.id: w.budget for w in worlds},
            "kernels": {w.problem.id: len(w.table["kernels"]) for w in worlds},
            **summary(curves, np.random.default_rng(0)),
            "curves": {line: np.round(np.exp(joined(curves[line]).mean(axis=0)), 4).tolist() for line in LINES},
        }
        if arguments.confirm:
            report["confirmed"] = {w.problem.id: confirmed(referee, w, winners[w.problem.id]) for w in worlds}
    print(json.dumps(report, indent=1))
    if arguments.output:
        before = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
        name = f"{arguments.set}, constants of other problems" if arguments.constants else arguments.set
        arguments.output.write_text(json.dumps({**before, name: report}, indent=1, sort_keys=True) + "\n")
    if arguments.plot:
        draw(curves, arguments.plot)
    return 0


def all_curves(
    worlds: Sequence[World], arguments: argparse.Namespace
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, dict[str, str]]]:
    """Curves by line and problem, and the kernel that most seeds ended with, by problem and line."""
    jobs = [(w, line, seed) for w in worlds for line in LINES for seed in range(arguments.seeds)]
    found: dict[str, dict[str, np.ndarray]] = {
        line: {w.problem.id: np.zeros((arguments.seeds, w.budget)) for w in worlds} for line in LINES
    }
    ends: dict[tuple[str, str], Counter[str]] = {}
    with multiprocessing.Pool(arguments.processes) as pool:
        for number, (name, line, seed, values, source) in enumerate(pool.imap_unordered(work, jobs), 1):
            found[line][name][seed] = values
            ends.setdefault((name, line), Counter())[source] += 1
            if number % 60 == 0:
                print(f"{number} of {len(jobs)} searches", file=sys.stderr)
    names = [w.problem.id for w in worlds]
    return found, {name: {line: ends[name, line].most_common(1)[0][0] for line in LINES} for name in names}


def confirmed(referee: Referee, world: World, winners: Mapping[str, str]) -> dict[str, Any]:
    """The winner of default beside those of the others, in fresh processes on this machine."""
    made = {line: Candidate(problem_id=world.problem.id, source=winners[line], backend="cpp") for line in LINES}
    others = {line: made[line] for line in LINES[1:] if made[line].sha256 != made["default"].sha256}
    rivals = list({other.sha256: other for other in others.values()}.values())
    with referee.open(world.problem, baselines=["eager"]) as session:
        verdict = session.judge(made["default"], depth=Confirm(rivals=tuple(rivals))).verdict
    if verdict.timing is None:
        return {"status": verdict.status.value, "reason": verdict.reason}
    timing = verdict.timing
    return {
        "default_vs_eager": _told(timing.speedup["eager"]),
        **{f"default_vs_{line}": _told(timing.rivals.get(other.sha256)) for line, other in others.items()},
        "the_same_kernel": [line for line in LINES[1:] if line not in others],
    }


def _told(speedup: Speedup | None) -> dict[str, float] | None:
    if speedup is None:
        return None
    return {name: round(getattr(speedup, name), 4) for name in ("median", "low", "high")}


def draw(curves: Mapping[str, Mapping[str, np.ndarray]], path: Path) -> None:
    """A panel for the mean over problems, one for each problem: lines are means over seeds, bands quartiles."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.hashsalt": "search", "font.size": 8, "font.family": "sans-serif"})
    problems = list(curves["default"])
    rows = math.ceil((len(problems) + 1) / 4)
    figure, panels = pyplot.subplots(rows, 4, figsize=(10, 2.1 * rows), sharex=True)
    shown = {"all, geometric mean": {line: joined(curves[line]) for line in LINES}}
    shown |= {name.split("/", 1)[1]: {line: curves[line][name] for line in LINES} for name in problems}
    for panel, (title, lines) in zip(panels.flat, shown.items(), strict=False):
        for line, values in lines.items():
            steps = 100 * np.arange(1, values.shape[1] + 1) / values.shape[1]
            low, high = np.exp(np.percentile(values, [25, 75], axis=0))
            panel.fill_between(steps, low, high, color=COLOURS[line], alpha=0.15, linewidth=0)
            panel.plot(steps, np.exp(values.mean(axis=0)), color=COLOURS[line], linewidth=1.5, label=line)
        panel.set_title(title, fontsize=8)
        panel.grid(axis="y", color="#dddddd", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in panels.flat[len(shown) :]:
        panel.set_visible(False)
    for panel in panels.flat[max(len(shown) - 4, 0) : len(shown)]:
        panel.tick_params(labelbottom=True)  # the lowest of each column
    panels.flat[0].legend(frameon=False, loc="lower right")
    figure.supxlabel("evaluations, % of those that a search has")
    figure.supylabel("speedup over eager of the kernel that is named best")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main())
