"""Makes the table of docs/gpu-kernels.md: what the first candidates of each built-in problem do on a GPU.

Needs no GPU. ``python scripts/gpu_table.py`` writes the table anew; with names of problems it only prints their rows.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kernelwright.agents.blueprint import CLASSES
from kernelwright.codegen import MOST_OPERATORS, CodegenError, Graph, generate, triton_seed
from kernelwright.codegen._capture import capture_entry
from kernelwright.codegen._inductor_triton import inductor_triton_entry
from kernelwright.codegen._plan import OWN_KINDS
from kernelwright.datasets import load_suite
from kernelwright.records import Problem

PAGE = Path(__file__).parents[1] / "docs" / "gpu-kernels.md"
SUITE = "kernelwright"
_MARKS = "<!-- rows -->", "<!-- end of rows -->"


class Row(NamedTuple):
    """What the compiler's kernels and ours read, write and launch in the timed shape.

    Attributes:
        compiler: launches and bytes of TorchInductor's lowering; None if it gives none.
        seed: whether TorchInductor's kernels become a candidate.
        why: why they do not.
        kernels, launches, bytes: of our default candidate. ``kernels`` are generated ones, ``launches`` library calls
            too.
    """

    name: str
    compiler: tuple[int, int] | None
    seed: bool
    why: str
    kernels: int
    launches: int
    bytes: int

    @property
    def holds(self) -> bool:
        """Whether the first two candidates hold TorchInductor's kernels, or ours launch and move no more than these."""
        if self.seed or self.compiler is None:
            return True
        launches, moved = self.compiler
        return self.launches <= launches and self.bytes <= moved

    def __str__(self) -> str:
        theirs = f"{self.compiler[0]} | {_size(self.compiler[1])}" if self.compiler else "– | –"
        first = "TorchInductor's, ours" if self.seed else f"ours ({self.why})"
        return f"| {self.name} | {theirs} | {self.kernels} | {self.launches} | {_size(self.bytes)} | {first} |"


def _size(count: int) -> str:
    return f"{count / 1e6:.3g}"


def row_of(problem: Problem) -> Row:
    """The row of a problem, in its first shape for a GPU."""
    variants = [dict(v) for kind in CLASSES["triton"] for v in problem.meta.variants_for(kind)]
    payload = {"source": problem.source, "variant": variants[0], "variants": variants, "mode": problem.meta.mode,
               "backward": problem.meta.backward}  # fmt: skip
    graph = Graph.from_json(capture_entry(payload))
    ours = generate(graph, backend="triton")
    kernels = sum(step.get("kernels", step["launches"]) for step in ours.report if step["kind"] in OWN_KINDS)
    reply: dict[str, Any] = {"ok": False, "reason": f"a loop of {graph.operators} operators"}
    if graph.operators <= MOST_OPERATORS:
        reply = inductor_triton_entry(payload)
    seed, why, compiler = False, "", None
    if reply["ok"]:
        parts = reply["variants"][0].get("halves", reply["variants"][:1])
        compiler = sum(part["launches"] for part in parts), sum(part["bytes"] for part in parts)
    try:
        seed = bool(triton_seed(graph, reply))
    except CodegenError as error:
        why = re.sub(r"^TorchInductor's kernels: | \(.*\)$", "", str(error))
    name = problem.id.removeprefix(f"{SUITE}/")
    return Row(name, compiler, seed, why, kernels, ours.launches, ours.bytes_moved)


def main() -> int:
    """Write the page, or print the rows that were asked for."""
    problems = {problem.id.removeprefix(f"{SUITE}/"): problem for problem in load_suite(SUITE)}
    if sys.argv[1:]:
        if unknown := sorted({*sys.argv[1:]} - {*problems}):
            print(f"no built-in problem is called {unknown[0]}: names are like {min(problems)}", file=sys.stderr)
            return 2
        for name in sys.argv[1:]:
            print(row_of(problems[name]))
        return 0
    rows = [str(row_of(problems[name])) for name in sorted(problems)]
    head, rest = PAGE.read_text().split(_MARKS[0])
    table = ["| problem | compiler: launches | MB | ours: own kernels | launches | MB | the first two |",
             "| --- | --: | --: | --: | --: | --: | --- |", *rows]  # fmt: skip
    PAGE.write_text(
        "\n".join([head + _MARKS[0], "", *table, "", summary(rows), "", _MARKS[1] + rest.split(_MARKS[1])[1]])
    )
    return 0


def summary(rows: Sequence[str]) -> str:
    """How often ours launches, and moves, less than the compiler's kernels, as much, and more."""
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    known = [[float(cell[n]) for n in (2, 3, 5, 6)] for cell in cells if cell[2] != "–"]
    texts = []
    for what, theirs, ours in (("launches", 0, 2), ("bytes", 1, 3)):
        signs = [(row[ours] > row[theirs]) - (row[ours] < row[theirs]) for row in known]
        counts = ", ".join(f"{signs.count(sign)} {word}" for sign, word in ((-1, "fewer"), (0, "as many"), (1, "more")))
        texts.append(f"{what}: {counts}")
    return f"Ours beside the compiler's, in {len(known)} problems: {'; '.join(texts)}."


if __name__ == "__main__":
    sys.exit(main())
