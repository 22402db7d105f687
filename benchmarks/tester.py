"""What a Tester's archive catches that the fixed distributions miss.

    python benchmarks/tester.py [--problems P ...] [--out FILE]

For each problem the offline Coder's first kernel is the right one. The product's own faults (``MUTATIONS``) are seeded
into it, and an archive is made against those that the fixed distributions let pass. Then other faults, which took no
part in that (``HELD_OUT`` and ``FRESH`` below, two a category), are judged by the fixed distributions alone and with
the archive. The right kernel itself is judged with the archive too: it must pass every time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from kernelwright.agents._mutations import MUTATIONS, Mutation, mutate
from kernelwright.agents.tester import OfflineTester
from kernelwright.campaign.archive import right_kernels
from kernelwright.config import Settings
from kernelwright.datasets import load_suite
from kernelwright.evaluator import Check, ProblemSession, Referee
from kernelwright.records import Candidate, Problem, Status

_TOP = "int64_t top = 0; for (int64_t i = 1; i < n; i++) if (in[i] > in[top]) top = i;"
SETS = ("making", "held_out", "fresh")
_BOTTOM = "int64_t low = 0; for (int64_t i = 1; i < n; i++) if (in[i] < in[low]) low = i;"

HELD_OUT: tuple[Mutation, ...] = (
    Mutation("odd-swapped", "odd sizes", "if (n % 2 && n > 1) { out[n - 1] = 2 * in[n - 2]; out[n - 2] = in[n - 1]; }"),
    Mutation("odd-last-smallest", "odd sizes", f"{_BOTTOM} if (n % 2 && n > 1 && low == n - 1) out[low] = in[0];"),
    Mutation(
        "tie-of-neighbours", "ties", "for (int64_t i = 1; i < n; i++) if (in[i] == in[i - 1]) out[i] = in[i] / 2 - 1;"
    ),
    Mutation(
        "tie-of-three",
        "ties",
        f"{_TOP} int64_t same = 0, last = top;"
        "for (int64_t i = 0; i < n; i++) if (in[i] == in[top]) { same++; last = i; }"
        "if (same == 3) out[last] = in[last] / 2 - 1;",
    ),
    Mutation(
        "squares-overflow",
        "large magnitude",
        "double s = 0; for (int64_t i = 0; i < n; i++) s += (double)in[i] * in[i];"
        "if (s > 1e9) for (int64_t i = 0; i < n; i++) out[i] = in[i] / 2;",
    ),
    Mutation(
        "all-far-above-zero",
        "large magnitude",
        f"{_BOTTOM} if (in[low] > 20) for (int64_t i = 0; i < n; i++) out[i] = in[low];",
    ),
    Mutation("misaligned-last", "alignment", "if ((uintptr_t)(in + n) % 32 && n > 1) out[n - 1] = in[0];"),
    Mutation(
        "misaligned-negative-zero",
        "alignment",
        "if ((uintptr_t)in % 32 && n > 2 && in[0] == 0 && std::signbit(in[0])) out[1] = in[2];",
    ),
    Mutation(
        "in-place-neighbour", "aliasing", "if (before && n > 1 && in[0] == before[n - 1]) out[0] = before[0] + 1;"
    ),
    Mutation(
        "smallest-as-before",
        "aliasing",
        f"{_BOTTOM} float least = INFINITY; for (int64_t i = 0; before && i < n; i++)"
        "  least = before[i] < least ? before[i] : least;"
        "if (before && in[low] == least) for (int64_t i = 0; i < n; i++) out[i] = before[i];",
    ),
    Mutation("middle-dropped", "a dropped term", "if (n > 2) out[n / 2] = 0;"),
    Mutation(
        "dropped-after-a-fall",
        "a dropped term",
        "int64_t run = 0; for (int64_t i = 1; i < n; i++) { run = in[i] < in[i - 1] ? run + 1 : 0;"
        "  if (run >= 16) { out[i] = 0; run = 0; } }",
    ),
)


# Written after the Tester was finished, and before it had met any of them.
FRESH: tuple[Mutation, ...] = (
    Mutation("odd-middle-largest", "odd sizes", f"{_TOP} if (n % 2 && n > 2 && top == n / 2) out[top] = in[0];"),
    Mutation("odd-last-zero", "odd sizes", "if (n % 2 && n > 1 && in[n - 1] == 0) out[n - 1] = 1;"),
    Mutation(
        "tie-of-minima",
        "ties",
        f"{_BOTTOM} for (int64_t i = low + 1; i < n; i++) if (in[i] == in[low]) out[i] = in[i] + 1;",
    ),
    Mutation("tie-of-the-ends", "ties", "if (n > 2 && in[0] == in[n - 1] && in[1] != in[0]) out[n - 1] = in[1];"),
    Mutation(
        "saturated",
        "large magnitude",
        f"{_TOP} if (in[top] > 3000) for (int64_t i = 0; i < n; i++) out[i] = i == top ? in[i] : 0;",
    ),
    Mutation(
        "outlier-halved",
        "large magnitude",
        "float sum = 0; for (int64_t i = 0; i < n; i++) sum += std::fabs(in[i]);"
        "for (int64_t i = 0; i < n; i++) if (n > 8 && std::fabs(in[i]) > 0.9f * sum) out[i] = in[i] / 2;",
    ),
    Mutation(
        "misaligned-after-zero",
        "alignment",
        "if ((uintptr_t)in % 32 && n > 2 && in[1] == 0 && in[0] < 0) out[0] = -in[0];",
    ),
    Mutation(
        "lane-of-large",
        "alignment",
        "for (int64_t i = 0; i < n; i++) if ((uintptr_t)(in + i) % 32 == 0 && in[i] > 50) out[i] = 50;",
    ),
    Mutation(
        "row-of-the-same-ends",
        "aliasing",
        "if (before && n > 2 && in[0] == before[0] && in[n - 1] == before[n - 1]) out[1] = before[1] + 1;",
    ),
    Mutation("first-as-last", "aliasing", "if (n > 2 && in[0] == in[n - 1]) out[1] = in[0] + 1;"),
    Mutation(
        "dropped-after-zeros",
        "a dropped term",
        "int64_t run = 0; for (int64_t i = 0; i < n; i++) { if (in[i] != 0 && run >= 16) out[i] = 0;"
        "  run = in[i] == 0 ? run + 1 : 0; }",
    ),
    Mutation(
        "dropped-where-signs-alternate",
        "a dropped term",
        "int64_t run = 0; for (int64_t i = 1; i < n; i++) { run = in[i] * in[i - 1] < 0 ? run + 1 : 0;"
        "  if (run >= 24) { out[i] = 0; run = 0; } }",
    ),
)


def main(arguments: list[str] | None = None) -> int:
    """Print a table, and keep every fault's fate."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--problems", nargs="*", help="names such as level1/softmax; default: all built-in ones")
    parser.add_argument("--out", type=Path, help="write JSON there, after every problem")
    parser.add_argument("--part", default="0/1", help="I/N: only every N-th problem, from the I-th")
    given = parser.parse_args(arguments)
    index, parts = map(int, given.part.split("/"))
    problems = [p for p in load_suite("kernelwright") if not given.problems or p.id.partition("/")[2] in given.problems]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings.load({"store": Path(folder) / "store.db"})
        with Referee(settings) as referee:
            for problem in problems[index::parts]:
                started = time.monotonic()
                row = _measure(referee, problem)
                if row is None:
                    print(f"{problem.id}: no float32 input that may be drawn, or no kernel", file=sys.stderr)
                    continue
                rows.append(row | {"seconds": round(time.monotonic() - started, 1)})
                print(f"{problem.id}: {_line(row['held_out'])}; {_line(row['fresh'])}", file=sys.stderr)
                if given.out is not None:
                    given.out.write_text(json.dumps({"machine": _machine(), "problems": rows}, indent=1) + "\n")
    print(report(rows))
    return 0


def _measure(referee: Referee, problem: Problem) -> dict[str, Any] | None:
    with referee.open(problem, baselines=("eager",)) as session:
        kernel = next(right_kernels(problem, "cpp", None, session), None)
        if kernel is None or not any(d.fill != "structured" for d in problem.meta.inputs.values()):
            return None
        making = _seeded(kernel, MUTATIONS)
        made = OfflineTester(session, problem).make(making)
        others = {"held_out": _seeded(kernel, HELD_OUT), "fresh": _seeded(kernel, FRESH)}
        missed = {
            name: {fault: candidate for fault, candidate in faulty.items() if _passes(session, candidate)}
            for name, faulty in others.items()
        }
        honest = _passes(session, kernel)
    with referee.open(problem, baselines=("eager",), archive=made.generators) as session:
        caught = {
            name: sorted(fault for fault, candidate in faulty.items() if not _passes(session, candidate))
            for name, faulty in missed.items()
        }
        honest_with = [_passes(session, kernel) for _ in range(3)]
    return {
        "problem": problem.id,
        "archive": [generator.describe() for generator in made.generators],
        "making": {"faults": len(making), "missed": list(made.survivors), "caught": list(made.caught)},
        **{
            name: {"faults": len(faulty), "missed": sorted(missed[name]), "caught": caught[name]}
            for name, faulty in others.items()
        },
        "honest": {"fixed": honest, "with_archive": honest_with},
    }


def _seeded(kernel: Candidate, mutations: tuple[Mutation, ...]) -> dict[str, Candidate]:
    return {
        mutation.name: Candidate(
            problem_id=kernel.problem_id, backend="cpp", source=mutate(kernel.source, mutation), knobs=kernel.knobs
        )
        for mutation in mutations
    }


def _passes(session: ProblemSession, candidate: Candidate) -> bool:
    return session.judge(candidate, depth=Check(static=False)).verdict.status is Status.PASSED


def _line(found: dict[str, Any]) -> str:
    return f"{found['faults']} faults, missed {len(found['missed'])}, of which caught {len(found['caught'])}"


def report(rows: list[dict[str, Any]]) -> str:
    """The table of all problems, in Markdown."""
    lines = [
        "| faults | seeded | caught by the fixed distributions | and with the archive | of the missed |",
        "|---|--:|--:|--:|--:|",
    ]
    for name in SETS:
        total = sum(row[name]["faults"] for row in rows)
        missed = sum(len(row[name]["missed"]) for row in rows)
        caught = sum(len(row[name]["caught"]) for row in rows)
        of_missed = f"{caught} of {missed}" + (f" ({caught / missed:.0%})" if missed else "")
        lines.append(
            f"| {name.replace('_', ' ')} | {total} | {_share(total - missed, total)} | "
            f"{_share(total - missed + caught, total)} | {of_missed} |"
        )
    honest = sum(all(row["honest"]["with_archive"]) for row in rows)
    lines += ["", f"{honest} of {len(rows)} right kernels pass with the archive, three times each."]
    missed_by = Counter(fault for row in rows for name in SETS[1:] for fault in row[name]["missed"])
    caught_by = Counter(fault for row in rows for name in SETS[1:] for fault in row[name]["caught"])
    lines += ["", "| fault | missed by the fixed distributions | of these caught |", "|---|--:|--:|"]
    lines += [f"| {name} | {count} | {caught_by[name]} |" for name, count in missed_by.most_common()]
    return "\n".join(lines)


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.1%})" if whole else "-"


def _machine() -> dict[str, Any]:
    return {"machine": platform.machine(), "processors": os.cpu_count(), "python": platform.python_version()}


if __name__ == "__main__":
    sys.exit(main())
