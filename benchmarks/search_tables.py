"""Every kernel of the offline Coder's schedule spaces, measured: the tables that benchmarks/search.py searches.

    python benchmarks/search_tables.py --folder benchmarks/results/MACHINE/search
    python benchmarks/search_tables.py --folder benchmarks/results/MACHINE/search --again     # twice, at best
    python benchmarks/search_tables.py --folder benchmarks/results/MACHINE/search --build-only level1/gelu

A problem's space is cut to at most 512 schedules: choices in the order of FIXED are left at their defaults until it
fits. Schedules that are built into the same machine code are one kernel. First all are built, then each is judged once
by the referee, in turns with eager. What is there already is kept, so that it can be ended and begun again.

One process may run a kernel some percent faster or slower than the next one does, by where its memory lies. ``--again``
measures all kernels once more, each in another process; the speedup is the median of a kernel's measurements. With
``--near 0.12``, only those are that lie within 0.12 (of the logarithm) of the best one: who might be the best of all;
and with ``--most 2``, only those that were not measured twice yet.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from kernelwright import codegen
from kernelwright.agents import StepContext, Workbench
from kernelwright.agents.blueprint import Blueprint, blueprint, inductor_seed
from kernelwright.config import Settings
from kernelwright.datasets import find_problem
from kernelwright.evaluator import ProblemSession, Referee, environment
from kernelwright.records import Candidate, KnobValue, Problem, sha256_text

OPEN = (
    "level1/group_norm",
    "level1/norm_middle_dim",
    "level1/conv2d",
    "level1/square_matmul",
    "level1/batched_matmul",
    "level2/gemm_bias_gelu",
    "level2/conv_bias_hardswish_scale",
    "level2/masked_softmax",
    "level3/attention_block",
    "level3/linear_attention",
    "level3/transformer_block",
    "level3/residual_conv_block",
)
SEALED = (
    "level1/softmax",
    "level2/gemm_scale_residual_clamp",
    "level2/conv_batch_norm_mish",
    "level2/group_norm_hardtanh",
    "level3/mlp_block",
    "level3/swiglu_feed_forward",
)
# Sealed too, with spaces as large as those of OPEN. By rule: of all other problems of the suite whose spaces give 60
# sources or more and whose default schedule passes, by level, in the order of the SHA-256 of level and name, the first
# two whose category no other of them has.
SEALED_LARGER = (
    "level1/kl_div_loss",
    "level1/tall_skinny_matmul",
    "level2/depthwise_separable_conv",
    "level2/gemm_logsumexp",
    "level3/soft_mixture_of_experts",
    "level3/sliding_window_attention",
)
SETS = {"open": OPEN, "sealed": SEALED, "sealed-larger": SEALED_LARGER}
MOST_SCHEDULES = 512
PAIRS = 12  # of windows, of each kernel: what is wanted is a table, and no proof
FIXED = ("reciprocal_math", "in_place", "scratch", "VECTOR_BITS", "prefetch", "UNROLL")
SEED = "TorchInductor"


def main() -> int:
    """Build and measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", help="default: those of all sets")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--build-only", action="store_true", help="time nothing yet: for a machine that is busy")
    parser.add_argument("--again", action="store_true", help="measure everything once more")
    parser.add_argument("--near", type=float, default=math.inf, help="with --again: only what is so near to the best")
    parser.add_argument("--most", type=int, default=sys.maxsize, help="with --again: only what was measured less often")
    arguments = parser.parse_args()
    settings = Settings(baselines=("eager",), measurement={"check_trials": 1, "looks": (PAIRS,)})
    with Referee(settings) as referee:
        for name in arguments.problems or itertools.chain(*SETS.values()):
            problem = find_problem(name)
            path = path_of(arguments.folder, problem)
            with referee.open(problem, baselines=["eager"]) as session:
                table = read(path) or begun(problem, session)
                build(table, problem, session)
                write(path, table)
                if not arguments.build_only:
                    measure(table, problem, session, arguments)
                    write(path, table)
            known = sum(row["log_speedup"] is not None for row in table["kernels"])
            count = len(table["kernels"])
            print(f"{name}: {len(table['schedules'])} schedules, {count} kernels, {known} measured", file=sys.stderr)
    return 0


# ------------------------------------------------------------------------------------------------------------ tables


def path_of(folder: Path, problem: Problem) -> Path:
    """Where the table of a problem lies."""
    return folder / f"{problem.id.split('/', 1)[1].replace('/', '-')}.json"


def read(path: Path) -> dict[str, Any] | None:
    """A table; None where there is none."""
    if not path.exists():
        return None
    table: dict[str, Any] = json.loads(path.read_text())
    for row in table["kernels"]:
        if row["log_speedup"] is not None:
            row.setdefault("log_speedups", [row["log_speedup"]])
    return table


def write(path: Path, table: Mapping[str, Any]) -> None:
    """Keep a table, a line for each of its kernels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    heads = {name: value for name, value in table.items() if name != "kernels"}
    text = json.dumps(heads, indent=1, sort_keys=True)[:-2]
    rows = ",\n  ".join(json.dumps(row, sort_keys=True) for row in table["kernels"])
    temporary = path.with_suffix(".new")
    temporary.write_text(f'{text},\n "kernels": [\n  {rows}\n ]\n}}\n')
    temporary.replace(path)


def key(space: Mapping[str, Sequence[KnobValue]], schedule: Mapping[str, KnobValue]) -> str:
    """A schedule as text: its values in the order of the knobs' names."""
    return json.dumps([schedule[knob] for knob in sorted(space)])


def schedules_of(space: Mapping[str, Sequence[KnobValue]]) -> Iterator[dict[str, KnobValue]]:
    """All schedules of a space."""
    for values in itertools.product(*space.values()):
        yield dict(zip(space, values, strict=True))


def begun(problem: Problem, session: ProblemSession) -> dict[str, Any]:
    """A table of what is to be built."""
    bench = Workbench(session.call)
    context = StepContext(problem=problem, backend="cpp", round=0, rounds=1, bench=bench)
    plan = blueprint(context)
    return {
        "problem": problem.id,
        "environment": environment(1).model_dump(mode="json"),
        "space": cut(plan),
        "default": plan.default,
        "schedules": {},
        "kernels": [],
    }


def cut(plan: Blueprint) -> dict[str, list[KnobValue]]:
    """A problem's space, with some choices left at their defaults where it is too large."""
    space = {knob: list(values) for knob, values in plan.space.items()}
    for knob in FIXED:
        if math.prod(len(values) for values in space.values()) <= MOST_SCHEDULES:
            break
        if knob in space:
            space[knob] = [plan.default[knob]]
    return space


@contextmanager
def restricted(space: Mapping[str, Sequence[KnobValue]]) -> Iterator[None]:
    """Let the offline Coder know of no schedules but those of a space."""
    known = {knob: list(values) for knob, values in space.items()}
    with mock.patch.object(codegen, "schedule_space", return_value=known):
        yield


def written(problem: Problem, session_call: Any, space: Mapping[str, Any]) -> dict[str, codegen.Generated]:
    """The kernel of each schedule that the generator has one for, and TorchInductor's, by their keys."""
    bench = Workbench(session_call)
    context = StepContext(problem=problem, backend="cpp", round=0, rounds=1, bench=bench)
    plan = blueprint(context)
    found = {}
    for schedule in schedules_of(space):
        try:
            found[key(space, schedule)] = codegen.generate(plan.graph, {**plan.default, **schedule}, backend="cpp")
        except codegen.CodegenError:
            continue
    seed = inductor_seed(context, plan.graph)
    return found if seed is None else {**found, SEED: seed}


def build(table: dict[str, Any], problem: Problem, session: ProblemSession) -> None:
    """Find out which schedules are one kernel."""
    if table["schedules"]:
        return
    by_source: dict[str, int] = {}
    by_code: dict[str, int] = {}
    for name, generated in written(problem, session.call, table["space"]).items():
        if generated.source not in by_source:
            candidate = Candidate(problem_id=problem.id, source=generated.source, backend="cpp")
            code = session.machine_code(candidate) or sha256_text(generated.source)
            if code not in by_code:
                by_code[code] = len(table["kernels"])
                table["kernels"].append({"name": name, "log_speedup": None})
            by_source[generated.source] = by_code[code]
        table["schedules"][name] = by_source[generated.source]


def measure(table: dict[str, Any], problem: Problem, session: ProblemSession, arguments: argparse.Namespace) -> None:
    """Judge each kernel that has no time yet, or those that are asked for once more, in an order of their own."""
    again: bool = arguments.again
    rows = [row for row in table["kernels"] if (row.get("status") == "PASSED" if again else "status" not in row)]
    if again:
        best = max((row["log_speedup"] for row in rows), default=0.0)
        rows = [row for row in rows if best - row["log_speedup"] <= arguments.near]
        rows = [row for row in rows if len(row["log_speedups"]) < arguments.most]
    sources = written(problem, session.call, table["space"]) if rows else {}
    if again:
        random.shuffle(rows)
    for row in rows:
        candidate = Candidate(problem_id=problem.id, source=sources[row["name"]].source, backend="cpp")
        verdict = session.judge(candidate, profile=not again).verdict
        if verdict.timing is not None:
            found = verdict.timing.speedup["eager"]
            times = row.setdefault("log_speedups", [])
            times.append(round(math.log(found.median), 5))
            row["log_speedup"] = round(statistics.median(times), 5)
        if again:
            if verdict.timing is None:
                print(f"{row['name']}: {verdict.status.value} this time: {verdict.reason}", file=sys.stderr)
            continue
        row["status"] = verdict.status.value
        if verdict.reason:
            row["reason"] = verdict.reason[:200]
        if verdict.timing is not None:
            row["half_width"] = round(math.log(found.high / found.low) / 2, 5)
        if verdict.profile is not None:
            row["bound"] = verdict.profile.bound
            row["metrics"] = {name: round(value, 6) for name, value in verdict.profile.metrics.items()}
        row["own_share"] = verdict.own_kernel_share
        row["seconds"] = round(sum(verdict.seconds.values()), 2)


if __name__ == "__main__":
    sys.exit(main())
