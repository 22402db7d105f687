"""How quick the store is with a million evaluations: what commands ask of it, recording, checking, merging.

    python benchmarks/store_million.py STORE --evaluations 1000000 --out FILE

STORE is made by ``leaderboard_store.py`` if it does not exist. An existing one is used as it is, and grows: a few
evaluations are recorded in it, and a store of 10,000 is merged into it. Commands run in this process, so the figures
are without the start of Python. Medians in milliseconds; the check, the merge and the dry run of a pruning run once.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner
from leaderboard_store import seed, verdict_of

from kernelwright.cli import cli
from kernelwright.evaluator import environment
from kernelwright.records import Candidate, Environment, Evaluation, Status, TimingSample
from kernelwright.store import Store

MERGED = 10_000
MERGED_FROM = 10_000_000  # the number of the first evaluation of a store that is merged
PRUNED = ("artifacts", "calls", "runs", "samples")
INTERACTIVE_MS = 200.0
RECORDING_MS = 20.0


def milliseconds(action: Callable[[], object], times: int) -> float:
    """The median time of an action, after one call that is not timed."""
    action()
    return statistics.median(once(action) for _ in range(times))


def once(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return 1000 * (time.perf_counter() - began)


def command(path: Path, *words: str) -> Callable[[], None]:
    def run() -> None:
        done = CliRunner().invoke(cli, [*words, "--store", str(path)])
        if done.exit_code:
            raise SystemExit(f"{' '.join(words)}: {done.output}")

    return run


def interactive(path: Path, times: int) -> dict[str, float]:
    """What a user or a page waits for."""
    with Store.open(path, readonly=True) as store:
        run = store.query("SELECT id FROM runs ORDER BY id LIMIT 1 OFFSET (SELECT count(*) / 2 FROM runs)")[0]["id"]
        place = store.board_places()[0]
        where = (place["environment"], place["baseline"])
        best = store.best()
        row = best[len(best) // 2]
        kernel, problem = row.candidate, row.problem
        asked: dict[str, Callable[[], object]] = {
            "runs list": command(path, "runs", "list"),
            "runs show": command(path, "runs", "show", run),
            "runs show last": command(path, "runs", "show", "last"),
            "kernels best": command(path, "kernels", "best"),
            "kernels best of one problem": lambda: store.best(problem),
            "kernels show": command(path, "kernels", "show", kernel, "--problem", problem),
            "board of one problem": lambda: store.entrants(*where, problem=problem),
            "board of all problems": lambda: store.entrants(*where),
            "boards there are": store.board_places,
            "ranking of one problem": lambda: store.ranked(problem, *where, row.backend),
            "rank of a kernel": lambda: store.rank_of(kernel, problem, *where, row.backend),
            "evaluations of a kernel": lambda: store.evaluations(problem=problem, candidate=kernel),
            "notes of a run": lambda: store.notes(run_id=run),
            "costs of a run": lambda: store.run_costs(run),
            "mean seconds of an evaluation": store.mean_evaluation_seconds,
            "search of a rare word": lambda: store.search("kernel 777"),
            "search of a frequent word": lambda: store.search("simd"),
        }
        return {name: milliseconds(action, times) for name, action in asked.items()}


def recording(path: Path, times: int) -> float:
    """One evaluation, with three artifacts and 72 samples, in a run."""
    with Store.open(path) as store:
        problem = store.problem(store.problems_in_use()[0]["problem"])
        run = store.runs(1)[0]
        own = Environment.model_validate(store.environment(store.board_places()[0]["environment"]).model_dump())
        numbers = iter(range(10**9))
        began = time.time_ns()

        def record() -> None:
            number = next(numbers)
            candidate = Candidate(
                problem_id=problem.id, source=f"kernel {began} {number}\n" * 80, backend="cpp", author="offline"
            )
            verdict = verdict_of(Status.PASSED, own.id, False, random.Random(1), 0.9)
            verdict = verdict.model_copy(update={"candidate": candidate.sha256, "problem": problem.id})
            samples = tuple(
                TimingSample(role=role, process=0, pair=pair, order=0, calls=9, latency_ms=0.2)
                for pair in range(24)
                for role in ("candidate", "eager", "compile")
            )
            artifacts = {name: f"{name} {began} {number}\n" * 100 for name in ("compiler", "worker output", "profile")}
            store.record_evaluation(
                Evaluation(candidate=candidate, verdict=verdict, environment=own, samples=samples, artifacts=artifacts),
                run_id=run.id,
            )

        return milliseconds(record, times)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("store", type=Path)
    arguments.add_argument("--evaluations", type=int, default=1_000_000)
    arguments.add_argument("--times", type=int, default=15, help="calls of each")
    arguments.add_argument("--out", type=Path, help="write the figures there as JSON")
    given = arguments.parse_args()
    if not given.store.exists():
        seed(given.store, given.evaluations)
    with Store.open(given.store) as store:
        evaluations = store.query("SELECT count(*) AS n FROM evaluations")[0]["n"]
    figures = interactive(given.store, given.times)
    slow = [name for name, median in figures.items() if median > INTERACTIVE_MS]
    figures["recording one evaluation"] = recording(given.store, 10 * given.times)
    slow += ["recording one evaluation"] * (figures["recording one evaluation"] > RECORDING_MS)
    with tempfile.TemporaryDirectory(dir=given.store.parent) as folder, Store.open(given.store) as store:
        other = Path(folder) / "other.db"
        seed(other, MERGED, first_number=MERGED_FROM + evaluations)
        figures[f"merging {MERGED}, dry run"] = once(lambda: store.merge([other], dry_run=True))
        figures[f"merging {MERGED}"] = once(lambda: store.merge([other]))
        figures[f"merging {MERGED} again"] = once(lambda: store.merge([other]))
    with Store.open(given.store, readonly=True) as store:
        figures["pruning, dry run"] = once(lambda: store.prune("9999", PRUNED, dry_run=True))
        figures["store check"] = once(lambda: check(store))
    for name, median in figures.items():
        print(f"{name:32} {median:10.1f} ms")
    print("slower than wanted:", ", ".join(slow) or "nothing")
    if given.out is not None:
        told = {name: round(median, 2) for name, median in figures.items()}
        about = {"environment": environment(1).model_dump(), "evaluations": evaluations, "medians_ms": told}
        given.out.write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")


def check(store: Store) -> None:
    if damage := store.check().damage:
        raise SystemExit(f"damaged: {damage[0]}")


if __name__ == "__main__":
    main()
