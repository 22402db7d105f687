"""How far honest kernels and cheats lie from the error budget: single operators, sums by length, the built-in suite.

Run: ``python benchmarks/bench_error_budget.py [--seeds 3] [--problems softmax ...] [--out FILE]``; about ten minutes on
one core. ``load`` is the largest error as a share of the budget: honest kernels must stay below 1, and cheats above it
or fail the precision probe. Printed: one line a problem with its worst honest kernel and its least conspicuous cheat,
then every honest kernel that fails and every cheat that passes.

Operators are those of ``tests/evaluator/evaluator_budget_cases.py``, treatments of the suite those of
``tests/evaluator/evaluator_budget_kernels.py``.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests" / "evaluator")]

from evaluator_budget_cases import (  # noqa: E402
    CASES,
    CHAINS,
    lane_sum,
    layer_norm_by,
    log_sum_exp_by,
    softmax_by,
)
from evaluator_budget_kernels import HONEST  # noqa: E402
from evaluator_budget_suite import bench, outcomes, replaced_problems  # noqa: E402

from kernelwright.evaluator.accuracy import arrays, distributions  # noqa: E402
from kernelwright.evaluator.accuracy import budget as _budget  # noqa: E402
from kernelwright.evaluator.accuracy.trials import data_of  # noqa: E402
from kernelwright.evaluator.worker.oracle_math import reference_scales  # noqa: E402
from kernelwright.records import InputDomain  # noqa: E402

DOMAIN = InputDomain(fill="normal")
NAMES = distributions.distributions_for(DOMAIN)
LANE_KERNELS = {
    "softmax": softmax_by,
    "layer_norm": layer_norm_by,
    "sum": lane_sum,
    "logsumexp": log_sum_exp_by,
}
CHAIN_SHAPES = {(1, 16_384): 100, (3, 16_384): 100, (16, 4099): 50, (128, 4099): 10}  # draws a seed
VARIANTS = (0, 1)  # of the cpu variants of each problem


def loads(reference, kernels, shapes, distribution, seed):
    """``load`` of every kernel on one draw."""
    rng = distributions.secret_rng(seed)
    inputs = [torch.from_numpy(distributions.make(distribution, s, "float32", DOMAIN, rng)) for s in shapes]
    return loads_on(inputs, reference, kernels, distribution, seed)


def loads_on(inputs, reference, kernels, distribution, seed):
    """``load`` of every kernel on these inputs."""
    scales = reference_scales(reference, reference, inputs, unit_roundoff=2.0**-24, seed=seed)
    y = scales.outputs[0]
    s = arrays.scale(y.mca_rms.numpy(), y.low_row_rms.numpy(), y.ref64.numpy(), "float32")
    options = {"data": data_of(distribution), "ref_low": y.ref_low.numpy()}
    return {
        name: _budget.judge_output(kernel(*inputs).numpy(), y.ref64.numpy(), s, scales.reductions, **options).load
        for name, kernel in kernels.items()
    }


def operators(seeds):
    """Largest load of honest kernels by distribution; smallest load of each cheat on normal data."""
    honest, cheats = {}, {}
    for name, case in CASES.items():
        for distribution in NAMES:
            kernels = {"reference": case.reference, **case.honest}
            found = [loads(case.reference, kernels, case.shapes, distribution, seed) for seed in range(seeds)]
            honest[f"{name}/{distribution}"] = max(max(f.values()) for f in found)
        found = [loads(case.reference, case.cheats, case.shapes, "normal", seed) for seed in range(seeds)]
        cheats.update({f"{name}/{cheat}": min(f[cheat] for f in found) for cheat in case.cheats})
    return honest, cheats


def chains(seeds):
    """Loads of kernels that add all terms in one chain, on draws of ``torch.rand`` and of ``torch.randn``."""
    table = {}
    for name, (reference, kernel) in CHAINS.items():
        for shape, draws in CHAIN_SHAPES.items():
            for distribution, made in (("own", torch.rand), ("normal", torch.randn)):
                found = []
                for seed in range(draws * seeds):
                    x = made(shape, generator=torch.Generator().manual_seed(seed))
                    found.append(loads_on([x], reference, {"": kernel}, distribution, seed)[""])
                key = f"{name}/{shape[0]}x{shape[1]}/{made.__name__} as {distribution}"
                refused = sum(load > 1.0 for load in found)
                table[key] = {"draws": len(found), "refused": refused, "median": median(found), "largest": max(found)}
                print(f"{key}: {table[key]}", flush=True)
    return table


def lanes(lengths=(4096, 16384, 65536), widths=(4, 8, 16)):
    """Load of running sums in lanes by operator, length and distribution."""
    table = {}
    for n in lengths:
        for name, kernel in LANE_KERNELS.items():
            variants = {str(w): lambda x, w=w, kernel=kernel: kernel(x, w) for w in widths}
            for distribution in ("normal", "uniform", "mixed_signs", "binary", "constant_rows"):
                table[f"{name}/{n}/{distribution}"] = loads(
                    CASES[name].reference, variants, ((16, n),), distribution, n
                )
    return table


def scalars(seeds, lengths=(2048, 16384, 65536, 262144), widths=(8, 16, 64)):
    """Largest load of sums over everything, as in a loss, on normal data: by terms, length and lanes."""
    table = {}
    for what, term in (("x", lambda x: x), ("x^2", torch.square)):
        for n in lengths:
            kernels = {str(w): lambda x, w=w, term=term: lane_sum(term(x), w) for w in widths}
            found = [
                loads(lambda x, term=term: term(x).sum(), kernels, ((n,),), "normal", seed) for seed in range(6 * seeds)
            ]
            table[f"{what}/{n}"] = {w: max(f[w] for f in found) for w in kernels}
    return table


class Row:
    """One treatment of one problem over all variants and seeds."""

    def __init__(self, honest):
        self.honest, self.runs, self.passed = honest, 0, 0
        self.load, self.other = (0.0, 0.0) if honest else (math.inf, math.inf)
        self.betas, self.failed_by = [], set()

    def add(self, found):
        extreme = max if self.honest else min
        self.runs, self.passed = self.runs + 1, self.passed + found.passed
        self.load, self.other = extreme(self.load, found.load), extreme(self.other, found.other_load)
        self.betas += [b for b in (*found.betas, found.min_block) if not math.isnan(b)]
        self.failed_by |= set(found.reasons)

    @property
    def right(self):
        return self.passed == (self.runs if self.honest else 0)

    def to_json(self):
        """Extremes: the largest loads of an honest treatment, the smallest of a cheat; and of beta, blocks included."""
        beta = [round(min(self.betas), 4), round(max(self.betas), 4)] if self.betas else None
        numbers = [float(f"{x:.3g}") for x in (self.load, self.other)]
        return {
            "load": numbers[0] if math.isfinite(numbers[0]) else "inf",
            "off_normal": numbers[1] if math.isfinite(numbers[1]) else "inf",
            "beta": beta,
            "passed": f"{self.passed}/{self.runs}",
        }

    def __str__(self):
        beta = f"beta {min(self.betas):.3f} to {max(self.betas):.3f}" if self.betas else "beta undecided"
        return f"load {self.load:.3g} ({self.other:.3g} off normal data), {beta}, passed {self.passed}/{self.runs}"


def suite(seeds, wanted):
    """Rows by problem and treatment, printed as they come."""
    table = {}
    for problem in replaced_problems():
        if wanted and problem.name not in wanted:
            continue
        rows = table[problem.id] = {}
        for variant in VARIANTS:
            for seed in range(seeds):
                for name, found in outcomes(bench(problem, "cpu", variant, seed)).items():
                    rows.setdefault(name, Row(name == "eager" or name in HONEST)).add(found)
        honest = max((row.load, name) for name, row in rows.items() if row.honest)
        cheat = min((row.load, name) for name, row in rows.items() if not row.honest)
        print(f"{problem.id}: honest {honest[0]:.2f} ({honest[1]}), cheat {cheat[0]:.3g} ({cheat[1]})", flush=True)
    return table


def main():
    """Measure, print the extremes, write everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="draws of each operator; the suite gets a third of them")
    parser.add_argument("--problems", nargs="*", default=[], help="only these problems of the suite")
    parser.add_argument("--chains", action="store_true", help="only kernels that add in one chain")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "epyc-2core" / "error_budget.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    one_chain = chains(options.seeds)
    refused, draws = (sum(row[key] for row in one_chain.values()) for key in ("refused", "draws"))
    print(f"one chain: {refused} of {draws} draws refused")
    if options.chains:
        return
    honest, cheats = operators(options.seeds)
    by_lanes = lanes()
    wide = {key: max(row["8"], row["16"]) for key, row in by_lanes.items()}
    by_scalar = scalars(options.seeds)
    table = suite(-(-options.seeds // 3), options.problems)
    wrong = {
        f"{problem}: {name}": row for problem, rows in table.items() for name, row in rows.items() if not row.right
    }
    summary = {
        "command": " ".join(["python", *sys.argv]),
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "seconds": round(time.perf_counter() - started, 1),
        "largest_honest_load": max(honest.values()),
        "smallest_cheat_load": min(cheats.values()),
        "largest_load_of_8_or_16_lanes": max(wide.values()),
        "suite_honest_that_fail": [name for name, row in wrong.items() if row.honest],
        "suite_cheats_that_pass": [name for name, row in wrong.items() if not row.honest],
        "honest": honest,
        "cheats": cheats,
        "one_chain": one_chain,
        "lanes": by_lanes,
        "scalars": by_scalar,
        "suite": {problem: {name: row.to_json() for name, row in rows.items()} for problem, rows in table.items()},
    }
    options.out.write_text(_compact(summary))
    for name, row in wrong.items():
        print(f"{'honest fails' if row.honest else 'cheat passes'}: {name}: {row}; failed by {sorted(row.failed_by)}")
    for key in ("largest_honest_load", "smallest_cheat_load", "largest_load_of_8_or_16_lanes", "seconds"):
        print(f"{key}: {summary[key]:.3g}")


def _compact(summary):
    """JSON with one line an entry of each table."""
    lines = []
    for key, value in summary.items():
        if key == "suite":
            inner = ",\n".join(
                f"  {json.dumps(problem)}: {{\n"
                + ",\n".join(f"   {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
                + "\n  }"
                for problem, rows in value.items()
            )
        elif isinstance(value, dict):
            inner = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in value.items())
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
            continue
        lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    main()
