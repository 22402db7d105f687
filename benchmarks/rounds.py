"""A run round by round as a table in Markdown and a plot.

    pip install -e '.[plots]'
    python benchmarks/rounds.py last --store store.db --plot docs/images/demonstration.svg

Above: the geometric mean of the speedup of each problem's best kernel so far, a problem without one counting as 1.
Below: the share of the problems whose best kernel is faster, by the lower end of its interval.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

COLOURS = {"eager": "#1f6feb", "compile": "#d9730d"}
NAMES = {"eager": "eager", "compile": "torch.compile"}


def main() -> int:
    """Print the table, and write the plot where one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run's id, or 'last'")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--plot", type=Path, help="an SVG file")
    arguments = parser.parse_args()
    told = told_by(arguments.run, arguments.store)
    print(table(told))
    if arguments.plot:
        arguments.plot.parent.mkdir(parents=True, exist_ok=True)
        draw(told, arguments.plot)
    return 0


def told_by(run: str, store: Path) -> dict:
    """What ``runs rounds`` says of a run."""
    command = [sys.executable, "-m", "kernelwright.cli", "runs", "rounds", run, "--store", str(store), "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def table(told: dict) -> str:
    """The rounds in Markdown."""
    baselines = told["baselines"]
    heads = [head for name in baselines for head in (f"mean vs {NAMES.get(name, name)}", "faster in")]
    lines = [f"| round | passed | {' | '.join(heads)} |", f"|---|---|{'---|' * len(heads)}"]
    for after in told["rounds"]:
        cells = [
            cell
            for name in baselines
            for cell in (f"{after['mean'][name]:.2f}x", f"{after['faster'][name]} of {after['problems']}")
        ]
        lines.append(f"| {after['round']} | {after['passed']} of {after['judged']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(told: dict, path: Path) -> None:
    """Two panels over the rounds, a line for each baseline."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.hashsalt": "rounds", "font.size": 10, "font.family": "sans-serif"})
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(6.4, 5.2), sharex=True, height_ratios=(3, 2))
    numbers = [after["round"] for after in told["rounds"]]
    for name in told["baselines"]:
        style = {"color": COLOURS.get(name), "marker": "o", "markersize": 4.5, "linewidth": 1.8}
        above.plot(
            numbers, [after["mean"][name] for after in told["rounds"]], label=f"vs {NAMES.get(name, name)}", **style
        )
        below.plot(numbers, [100 * after["faster"][name] / after["problems"] for after in told["rounds"]], **style)
    above.axhline(1.0, color="#888888", linewidth=0.8, linestyle="--")
    above.set_ylabel("speedup, geometric mean")
    above.legend(frameon=False, loc="lower right")
    below.set_ylabel("problems faster, %")
    below.set_ylim(0, 105)
    below.set_xlabel("round")
    below.set_xticks(numbers)
    for panel in (above, below):
        panel.grid(axis="y", color="#dddddd", linewidth=0.7)
        panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main())
