"""The record of a search over the built-in suite: each problem's confirmed kernel, and how far it is ahead.

    kernelwright optimize --all --rounds 5 --own-kernels any --store suite.db     # about two and a half hours
    python benchmarks/suite.py suite.db RUN --output benchmarks/results/MACHINE/suite.json

Writes the record, and with ``--images FOLDER`` the plots of docs/log.md. Exit code 1 if the goals are not reached: in
85 of 100 problems faster than eager, in none more than 5% behind the better of eager and torch.compile, 1.8 times as
fast as eager by the geometric mean.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from kernelwright.campaign import rows_of
from kernelwright.evaluator import Result, bootstrap_interval, fast_p, geometric_mean
from kernelwright.plots import curves_svg, dots_svg
from kernelwright.store import Store

BASELINES = ("eager", "compile")
KEPT = {"problem", "status", "confirmed", "latency_ms", "speedup", "own_kernel_label", "eligible", "rounds", "seconds"}
SETTINGS = ("rounds", "own_kernels", "baselines", "threads", "recipe", "coder", "judge", "sandbox")
BEHIND = 0.95


def main() -> int:
    """Write the record; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("run")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--images", type=Path, help="a folder for suite-fast_p.svg and suite-speedups.svg")
    options = parser.parse_args()
    with Store.open(options.store, readonly=True) as store:
        run = store.run(options.run)
        rows = rows_of(store, run.id)
        (environment,) = {row.environment for row in rows if row.environment}
        record = {
            "made": [run.created_at[:10], run.updated_at[:10]],
            "command": "kernelwright optimize --all --rounds 5 --own-kernels any",
            "environment": store.environment(environment).model_dump(mode="json"),
            "settings": {name: value for name, value in run.config.settings.items() if name in SETTINGS},
            "minutes": run.seconds / 60,
            "summary": summary_of([row.speedup for row in rows]),
            "labels": Counter(row.own_kernel_label for row in rows),
            "problems": [row.model_dump(mode="json", include=KEPT) for row in rows],
        }
    options.output.write_text(as_text(record))
    if options.images:
        draw(record["problems"], options.images)
    print(json.dumps(record["summary"], indent=1))
    summary = record["summary"]
    reached = summary["faster_than_eager"] >= 0.85 * len(rows) and not summary["behind"]
    return 0 if reached and summary["over_eager"]["geometric_mean"] >= 1.8 else 1


def summary_of(speedups: list[Any]) -> dict[str, Any]:
    """Counts and geometric means over problems; a problem without a kernel counts as no speedup."""
    best = [min((found[name].median for name in BASELINES if name in found), default=0.0) for found in speedups]
    summary: dict[str, Any] = {"problems": len(speedups), "with_a_kernel": sum(map(bool, speedups))}
    summary |= {"behind": sum(value < BEHIND for value in best), "least_over_the_better": min(best)}
    for name in BASELINES:
        ratios = [found[name].median if name in found else 1.0 for found in speedups]
        low, high = bootstrap_interval([math.log(ratio) for ratio in ratios])
        summary[f"faster_than_{name}"] = sum(name in found and found[name].faster for found in speedups)
        summary[f"over_{name}"] = {
            "geometric_mean": geometric_mean(ratios),
            "interval": [math.exp(low), math.exp(high)],
            **{f"fast_{p:g}": fast_p([Result(True, ratio) for ratio in ratios], p) for p in (1.0, 1.5, 2.0)},
        }
    return summary


def as_text(record: dict[str, Any]) -> str:
    """JSON with one line a problem, numbers to five digits."""

    def short(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.5g}")
        if isinstance(value, dict):
            return {key: short(inner) for key, inner in value.items()}
        return [short(inner) for inner in value] if isinstance(value, list | tuple) else value

    found = short(record)
    lines = ",\n".join(f"  {json.dumps(row)}" for row in found.pop("problems"))
    return f'{json.dumps(found, indent=1)[:-2]},\n "problems": [\n{lines}\n ]\n}}\n'


def draw(problems: list[dict[str, Any]], folder: Path) -> None:
    """The share of problems that are more than p times as fast, over p; and all speedups over eager."""
    lines = {}
    for name in BASELINES:
        found = sorted(row["speedup"][name]["median"] for row in problems if name in row["speedup"])
        curve = [(0.5, len(found) / len(problems))]
        curve += [(value, (len(found) - place) / len(problems)) for place, value in enumerate(found, 1)]
        lines[f"against {name}"] = curve
    plot = curves_svg(lines, across="speedup p over the baseline", up="fast_p", log2=True, steps=True, reach=(0, 1))
    (folder / "suite-fast_p.svg").write_text(plot + "\n")
    over_eager = {row["problem"]: row["speedup"]["eager"]["median"] for row in problems if "eager" in row["speedup"]}
    (folder / "suite-speedups.svg").write_text(dots_svg(over_eager, "Speedup over eager") + "\n")


if __name__ == "__main__":
    sys.exit(main())
