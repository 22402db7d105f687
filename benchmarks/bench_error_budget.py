"""How far honest kernels and cheats lie from the error budget, over operators, lanes, lengths and distributions.

Run: ``python benchmarks/bench_error_budget.py [--seeds 3] [--out benchmarks/results/error_budget.json]``; about a
minute on one core. ``load`` is the error as a share of the budget: honest kernels must stay below 1, cheats above.
The operators and variants are those of ``tests/evaluator/evaluator_budget_cases.py``.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests" / "evaluator")]

from evaluator_budget_cases import (  # noqa: E402
    CASES,
    lane_sum,
    layer_norm_by,
    log_sum_exp_by,
    softmax_by,
)

from kernelwright.evaluator import _budget, _distributions  # noqa: E402
from kernelwright.evaluator._oracle_math import reference_scales  # noqa: E402
from kernelwright.records import InputDomain  # noqa: E402

DOMAIN = InputDomain(fill="normal")
NAMES = _distributions.distributions_for(DOMAIN)
LANE_KERNELS = {
    "softmax": softmax_by,
    "layer_norm": layer_norm_by,
    "sum": lane_sum,
    "logsumexp": log_sum_exp_by,
}


def loads(reference, kernels, shapes, distribution, seed):
    """``load`` of every kernel on one draw."""
    rng = _distributions.secret_rng(seed)
    inputs = [torch.from_numpy(_distributions.make(distribution, s, "float32", DOMAIN, rng)) for s in shapes]
    scales = reference_scales(reference, reference, inputs, unit_roundoff=2.0**-24, seed=seed)
    y = scales.outputs[0]
    s = _budget.scale(y.mca_rms.numpy(), y.low_row_rms.numpy(), y.ref64.numpy(), "float32")
    options = {"distribution_is_normal": distribution == "normal", "ref_low": y.ref_low.numpy()}
    return {
        name: _budget.judge_output(
            kernel(*inputs).numpy(), y.ref64.numpy(), s, scales.longest_reduction, **options
        ).load
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


def lanes(lengths=(4096, 16384, 65536), widths=(1, 4, 8, 16)):
    """Load of running sums in lanes by operator, length and distribution; one lane is refused on purpose."""
    table = {}
    for n in lengths:
        for name, kernel in LANE_KERNELS.items():
            variants = {str(w): lambda x, w=w, kernel=kernel: kernel(x, w) for w in widths}
            for distribution in ("normal", "uniform", "mixed_signs", "binary", "constant_rows"):
                table[f"{name}/{n}/{distribution}"] = loads(
                    CASES[name].reference, variants, ((16, n),), distribution, n
                )
    return table


def main():
    """Measure, print the extremes, write everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "error_budget.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    honest, cheats = operators(options.seeds)
    by_lanes = lanes()
    wide = {key: max(row["8"], row["16"]) for key, row in by_lanes.items()}
    summary = {
        "command": " ".join(["python", *sys.argv]),
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "seconds": round(time.perf_counter() - started, 1),
        "largest_honest_load": max(honest.values()),
        "smallest_cheat_load": min(cheats.values()),
        "largest_load_of_8_or_16_lanes": max(wide.values()),
        "honest": honest,
        "cheats": cheats,
        "lanes": by_lanes,
    }
    options.out.write_text(json.dumps(summary, indent=1) + "\n")
    for key in ("largest_honest_load", "smallest_cheat_load", "largest_load_of_8_or_16_lanes", "seconds"):
        print(f"{key}: {summary[key]:.3g}")


if __name__ == "__main__":
    main()
