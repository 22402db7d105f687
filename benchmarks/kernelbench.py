"""The offline Coder's first kernel for every problem of KernelBench's levels 1 to 3, in sizes that fit this machine.

    python benchmarks/kernelbench.py CHECKOUT --output ROWS [--level L ...] [--max-minutes M] [--baseline B ...]
        [--set KEY=VALUE ...] [--store FILE] [--table-only]

CHECKOUT is a checkout of KernelBench. The bench takes hours; called again it goes on where it ended. Writes a row for
each verdict, without sources, to ROWS, and the table of ``docs/kernelbench.md`` from it. Exit code 1 where fewer first
kernels are right than wanted, or where a problem has no row.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwright.campaign import find_bench
from kernelwright.store import Store

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "kernelbench.md"
BENCH = "kernelbench"
WANTED = {1: 0.85, 2: 0.85, 3: 0.60}  # right first kernels, as a share of a level's problems
PROBLEMS = {1: 100, 2: 100, 3: 50}
START, END = "<!-- table: benchmarks/kernelbench.py writes it -->", "<!-- end of the table -->"

Row = Mapping[str, Any]


def main(words: Sequence[str] | None = None) -> int:
    """Run or continue the bench, keep its rows, and write the page's table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--level", type=int, action="append", choices=PROBLEMS, help="default: all three")
    parser.add_argument("--max-minutes", type=float, default=None, help="for each level")
    parser.add_argument("--baseline", action="append", default=None, help="default: eager and compile")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the referee")
    parser.add_argument("--store", type=Path, default=Path("kernelbench.db"))
    parser.add_argument("--output", type=Path, required=True, help="the rows: a .jsonl file")
    parser.add_argument("--table-only", action="store_true", help="write the table from the rows of --output")
    arguments = parser.parse_args(words)
    if not arguments.table_only:
        run(arguments)
    rows = rows_of(arguments.output)
    write_table(PAGE, rows)
    return 0 if enough(rows) else 1


def run(arguments: argparse.Namespace) -> None:
    """Run or continue the bench of each level by the command line, and keep the rows; those of other levels stay."""
    program = str(Path(sysconfig.get_path("scripts")) / "kernelwright")
    baselines = [word for b in arguments.baseline or ("eager", "compile") for word in ("--baseline", b)]
    settings = [word for setting in arguments.set for word in ("--set", setting)]
    limit = [] if arguments.max_minutes is None else ["--max-minutes", str(arguments.max_minutes)]
    store = ["--store", str(arguments.store)]
    suite = ["--suite-dir", str(arguments.checkout / "KernelBench")]
    for level in arguments.level or PROBLEMS:
        bench = f"{BENCH}-level{level}"
        names = [f"KernelBench/level{level}/{number}" for number in range(1, PROBLEMS[level] + 1)]
        # A bench that has begun goes on with its own problems, in the sizes that were found for them.
        first = [] if run_of(arguments.store, bench) else [*names, "--fit", "--samples", "1"]
        command = [program, "bench", "run", bench, *first, "--coder", "offline", *suite]
        subprocess.run([*command, *baselines, *settings, *limit, *store], check=False)
        run_id = run_of(arguments.store, bench)
        if run_id is None:
            raise SystemExit(f"the bench of level {level} did not begin")
        before = [row for row in rows_of(arguments.output) if row["level"] != level]
        now = verdicts(program, bench, store)
        now += failures(program, run_id, level, store, {row["problem"] for row in now})
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(row) + "\n" for row in sorted([*before, *now], key=lambda row: row["level"]))
        arguments.output.write_text(text, encoding="utf-8")


def run_of(path: Path, bench: str) -> str | None:
    """The run of a bench in a store; None where the bench has not begun."""
    if not path.exists():
        return None
    with Store.open(path, readonly=True) as store:
        found = find_bench(store, bench)
    return None if found is None else found.id


def verdicts(program: str, bench: str, store: Sequence[str]) -> list[Row]:
    """A row for each verdict of a bench, without sources."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, "bench", "export", bench, folder, "--format", "jsonl", *store], check=True)
        rows = rows_of(next(Path(folder).rglob("*.jsonl")))
    return [{name: value for name, value in row.items() if not name.endswith("source")} for row in rows]


def failures(program: str, run_id: str, level: int, store: Sequence[str], judged: Container[str]) -> list[Row]:
    """A row for each problem that failed before any verdict, as one does whose reference fails."""
    shown = subprocess.run([program, "runs", "show", run_id, "--json", *store], check=True, stdout=subprocess.PIPE)
    ended = [one for one in json.loads(shown.stdout)["problems"] if one["state"] == "failed"]
    return [
        {"problem": one["problem"], "level": level, "status": one["status"], "reason": one["reason"], "correct": False}
        for one in ended
        if one["problem"] not in judged
    ]


def rows_of(path: Path) -> list[Row]:
    """The rows of a file; none where it does not exist."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def is_right(row: Row) -> bool:
    """Whether the referee called a kernel right; only kernels that compute something themselves pass."""
    return bool(row["correct"])


def of_level(rows: Iterable[Row], level: int) -> list[Row]:
    """The rows of a level."""
    return [row for row in rows if row["level"] == level]


def enough(rows: Sequence[Row]) -> bool:
    """Whether all problems have a row, and enough of each level are right."""
    return all(
        len(of_level(rows, level)) == count and sum(map(is_right, of_level(rows, level))) >= WANTED[level] * count
        for level, count in PROBLEMS.items()
    )


def mean_speedup(rows: Sequence[Row], baseline: str) -> str:
    """The geometric mean of the speedups of right kernels over a baseline, and how many were timed."""
    key = f"speedup_{baseline}"
    found = [row[key] for row in rows if is_right(row) and row.get(key)]
    if not found:
        return "not timed"
    return f"{math.exp(sum(map(math.log, found)) / len(found)):.2f}x of {len(found)}"


def table(rows: Sequence[Row]) -> str:
    """The page's two tables: figures of each level, and each problem without a right kernel, with its reason."""
    lines = [
        "| level | problems | right first kernels | vs eager, geometric mean | vs torch.compile |",
        "|---|---|---|---|---|",
    ]
    missing = 0
    for level, count in PROBLEMS.items():
        mine = of_level(rows, level)
        right = sum(map(is_right, mine))
        means = " | ".join(mean_speedup(mine, baseline) for baseline in ("eager", "compile"))
        lines.append(f"| {level} | {len(mine)} of {count} | {right} ({right / count:.0%}) | {means} |")
        missing += count - len(mine)
    wrong = [row for row in rows if not is_right(row)]
    lines += ["", f"Judged, without a right first kernel: {len(wrong)}. Not judged yet: {missing}.", ""]
    if wrong:
        lines += ["| problem | status | reason |", "|---|---|---|"]
    for row in wrong:
        reason = " ".join(str(row["reason"]).split()).replace("|", "\\|")
        lines.append(
            f"| {row['problem'].removeprefix('KernelBench/')} | {row['status'] or 'no kernel'} | {reason[:300]} |"
        )
    return "\n".join(lines)


def write_table(page: Path, rows: Sequence[Row]) -> None:
    """Put the tables between the page's two marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(START)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{START}\n\n{table(rows)}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
