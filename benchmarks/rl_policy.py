"""A schedule policy trained by GRPO on real verdicts: does it learn, does it carry over, what would TPE have found?

    python benchmarks/rl_policy.py --work DIR --output benchmarks/results/MACHINE/rl_policy.json
    python benchmarks/rl_policy.py --work DIR --output FILE --seeds 0 --minutes 3      # a quick look

For each seed, ``kernelwright rl train --method grpo --model tiny`` runs as a user runs it. It trains, and measures on
problems that were held out: the policy beside the default schedule, beside the one schedule that is the best for all
training problems, and beside itself untrained, all in the same turns of fresh processes.

Beside it TPE (J. Bergstra et al., "Algorithms for hyper-parameter optimization", 2011), as Optuna has it, searches the
spaces of the held-out problems themselves, with as many verdicts in all, shared out equally, and the same reward; the
policy never saw a verdict of one of them. TPE's best schedules and the policy's are then timed in the same turns. A
schedule that is built into machine code that was judged costs neither a verdict.

What is there already in ``--work`` is kept, so that it can be ended and begun again. Give the machine nothing else to
do.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna

from kernelwright.campaign.paired import Measured, paired_means
from kernelwright.cli._rl_train import QUICK
from kernelwright.config import Settings
from kernelwright.evaluator import environment
from kernelwright.plots import curves_svg
from kernelwright.rl import HELD_OUT, TRAINING, LocalScorer
from kernelwright.rl._held_out import HeldOut, held_out
from kernelwright.rl._policy_training import schedules_of
from kernelwright.rl._progress import read_lines
from kernelwright.rl._schedule_problems import ScheduleProblem, Twins, captured_all
from kernelwright.rl._training import smoothed_rewards
from kernelwright.store import Store

ASKED_AT_MOST = 6  # schedules that TPE may ask for a verdict that it has: most are known


def main() -> int:
    """Train, search, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where trainings go")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=6.0, help="of training, measuring not counted")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for seed in options.seeds:
        trained(seed, options)
    rows = [seed_row(seed, options) for seed in options.seeds]
    record = {
        "environment": environment(1).model_dump(mode="json"),
        "minutes": options.minutes,
        "training": TRAINING,
        "held_out": HELD_OUT,
        "seeds": rows,
        "together": together(rows),
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    lines = {f"seed {row['seed']}": [tuple(point) for point in row["curve"]] for row in rows}
    options.output.with_suffix(".svg").write_text(curves_svg(lines, across="verdicts", up="mean reward") + "\n")
    print(json.dumps(record["together"], indent=1))
    return 0


def seed_row(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One seed that was trained, and TPE beside it."""
    folder = options.work / f"seed{seed}"
    done = folder / "row.json"
    if done.exists():
        found: dict[str, Any] = json.loads(done.read_text())
        return found
    seconds = trained(seed, options)
    result = json.loads((folder / "result.json").read_text())
    measured = HeldOut.model_validate_json((folder / "held_out.json").read_text())
    row = {
        "seed": seed,
        "seconds_in_all": round(seconds, 1),
        **{name: result[name] for name in ("seconds", "steps", "verdicts", "first", "last", "single", "over")},
        "curve": smoothed_rewards(read_lines(folder / "metrics.jsonl"), TRAINING),
        "rows": [one.model_dump(mode="json") for one in measured.rows],
        "tpe": searched(HELD_OUT, folder, result["verdicts"], seed),
    }
    done.write_text(json.dumps(row, indent=1))
    return row


def trained(seed: int, options: argparse.Namespace) -> float:
    """Train as a user does, unless that was done; seconds of the whole command."""
    folder = options.work / f"seed{seed}"
    clock = folder / "seconds.txt"
    if clock.exists():
        return float(clock.read_text())
    words = ["--minutes", str(options.minutes), "--seed", str(seed), "--steps", "100000", "--output", str(folder)]
    if (folder / "plan.json").exists():
        words = ["--resume", str(folder)]
    began = time.monotonic()
    command = [sys.executable, "-m", "kernelwright.cli", "rl", "train", "--store", str(options.work / "store.db")]
    method = [] if "--resume" in words else ["--method", "grpo", "--model", "tiny"]
    subprocess.run([*command, *method, *words], check=True, env=_environment())
    seconds = time.monotonic() - began
    clock.write_text(f"{seconds:.1f}")
    return seconds


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "OMP_NUM_THREADS": "1"}


def searched(names: Sequence[str], folder: Path, verdicts: int, seed: int) -> dict[str, Any]:
    """TPE on problems, with so many verdicts in all, and the policy's schedules timed beside what it found."""
    alone = Settings(baselines=("eager",))
    quick = alone.with_values("quick", measurement=QUICK)
    with Store.open(folder / "tpe.db") as store:
        with LocalScorer(quick, store, reward="log-speedup", sessions=2) as scorer:
            problems = list(captured_all(names, scorer))
            found, spent = {}, 0
            for number, problem in enumerate(problems):
                share = (verdicts - spent) // (len(problems) - number)
                found[problem.name], used = best_of(problem, scorer, share, seed)
                spent += used
                print(f"TPE {problem.name}: {used} verdicts", file=sys.stderr, flush=True)
        with LocalScorer(alone, store, reward="log-speedup", sessions=2) as measurer:
            problems = list(captured_all(names, measurer))
            policy = schedules_of(folder / "policy", problems)
            said = held_out(problems, policy, {"tpe": found}, measurer, lambda line: print(line, file=sys.stderr))
    return {"verdicts": spent, "policy_over_tpe": said.over["tpe"].model_dump(), "rows": said.model_dump()["rows"]}


def best_of(problem: ScheduleProblem, scorer: LocalScorer, verdicts: int, seed: int) -> tuple[Mapping[str, Any], int]:
    """The best schedule that TPE finds, the default among those that it is told of first, and verdicts spent."""
    twins = Twins(scorer)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    study.enqueue_trial({name: str(value) for name, value in problem.default.items()})
    values = {name: {str(value): value for value in space} for name, space in problem.plan.space.items()}

    def reward(trial: optuna.Trial) -> float:
        said = {name: trial.suggest_categorical(name, sorted(known)) for name, known in values.items()}
        schedule = {name: values[name][word] for name, word in said.items()}
        trial.set_user_attr("schedule", schedule)
        source = problem.source(schedule)
        found = None if source is None else twins.rewards([(problem, source)])[0]
        return 0.0 if found is None else found

    for _ in range(ASKED_AT_MOST * verdicts):
        if twins.verdicts >= verdicts:
            break
        study.optimize(reward, n_trials=1)
    best: Mapping[str, Any] = study.best_trial.user_attrs["schedule"]
    return best, twins.verdicts


def together(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Over all seeds: of each held-out problem the mean over seeds, then an interval over problems."""
    said: dict[str, Any] = {
        "rewards": [[row["first"], row["last"]] for row in rows],
        "verdicts": [row["verdicts"] for row in rows],
        "seconds_in_all": [row["seconds_in_all"] for row in rows],
    }
    for name in ("default", "best-single", "untrained"):
        said[f"held out, over {name}"] = _mean([row["rows"] for row in rows], name)
    said["held out, over TPE that searched it"] = _mean([row["tpe"]["rows"] for row in rows], "tpe")
    return said


def _mean(seeds: Sequence[Sequence[Mapping[str, Any]]], name: str) -> dict[str, Any]:
    """The geometric mean of ratios over problems, of each the mean over seeds."""
    by_problem: dict[str, list[Mapping[str, float]]] = {}
    for rows in seeds:
        for row in rows:
            if name in row["ratios"]:
                by_problem.setdefault(row["problem"], []).append(row["ratios"][name])
    measured = []
    for found in by_problem.values():
        logs = [math.log(one["median"]) for one in found]
        widths = [math.log(one["high"] / one["low"]) / 3.92 for one in found]
        deviation = math.sqrt(sum(width * width for width in widths)) / len(found)
        measured.append(Measured(sum(logs) / len(logs), deviation))
    return paired_means(measured, [Measured(0.0)] * len(measured)).ratio.model_dump()


if __name__ == "__main__":
    sys.exit(main())
