"""Simulated error rates and coverage of the timing statistics, at the noise that two cores showed.

Run: ``python benchmarks/bench_timing_statistics.py [--trials 4000] [--out benchmarks/results/timing_statistics.json]``;
about 20 seconds on one core. Noise model: a normal core with 8% outliers of 5% to 30% on either side, and a normal
deviation between processes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from kernelwright.evaluator.figures import intervals as statistics  # noqa: E402


def noisy_pairs(rng, shape, deviation):
    """Log-ratios of window pairs within one process."""
    core = rng.normal(0, deviation, shape)
    return core + (rng.random(shape) < 0.08) * rng.uniform(0.05, 0.3, shape) * rng.choice([-1, 1], shape)


def search(trials, truth, deviation=0.025, noise=0.03):
    """Share of trials that claim faster, coverage of the interval, and mean number of pairs.

    Beside it, of how many the interval's lower bound clears the noise bound at the end, whatever its width.
    """
    rng = np.random.default_rng(1)
    faster = bound_clear = covered = pairs = 0
    for _ in range(trials):
        test = statistics.SequentialTest(noise_bound=noise)
        for value in math.log(truth) + noisy_pairs(rng, 96, deviation):
            if test.add(float(value)):
                break
        interval = test.interval()
        faster += test.faster
        bound_clear += interval.low > math.log1p(noise)
        covered += interval.low <= math.log(truth) <= interval.high
        pairs += test.pairs
    return {
        "faster": faster / trials,
        "bound_clear": bound_clear / trials,
        "coverage": covered / trials,
        "mean_pairs": pairs / trials,
    }


def confirmation(trials, between, truth=1.0, noise=0.014):
    """Coverage, share that claim faster, mean number of process pairs and median half-width."""
    rng = np.random.default_rng(2)
    covered = faster = 0
    needed, widths = [], []
    for _ in range(trials):
        drift = rng.normal(0, between, (statistics.MAXIMUM_PROCESS_PAIRS, 1))
        values = math.log(truth) + np.median(
            noisy_pairs(rng, (statistics.MAXIMUM_PROCESS_PAIRS, statistics.WINDOW_PAIRS_PER_PROCESS), 0.03) + drift, 1
        )
        needed.append(statistics.stein_confirmation(values[: statistics.FIRST_PROCESS_PAIRS]))
        interval = statistics.stein_interval(values[: needed[-1]])
        covered += interval.low <= math.log(truth) <= interval.high
        faster += interval.low > math.log1p(noise)
        widths.append(interval.half_width)
    return {
        "coverage": covered / trials,
        "faster": faster / trials,
        "mean_process_pairs": float(np.mean(needed)),
        "median_half_width": float(np.median(widths)),
    }


def main():
    """Simulate, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=4000)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "timing_statistics.json")
    options = parser.parse_args()
    started = time.perf_counter()
    results = {
        **{f"search, truth {truth}x": search(options.trials, truth) for truth in (1.0, 1.02, 1.05, 1.15)},
        **{
            f"search, truth {truth}x, windows scatter by {deviation:.0%}": search(options.trials, truth, deviation)
            for deviation in (0.12, 0.25, 0.5)
            for truth in (1.0, 1.15, 1.5)
        },
        **{
            f"confirmation, {between:.1%} between processes": confirmation(options.trials, between)
            for between in (0.005, 0.01, 0.02, 0.03, 0.05)
        },
        "confirmation, truth 1.15x": confirmation(options.trials, 0.01, truth=1.15),
    }
    summary = {
        "command": " ".join(["python", *sys.argv]),
        "numpy": np.__version__,
        "trials": options.trials,
        "seconds": round(time.perf_counter() - started, 1),
        "results": results,
    }
    options.out.write_text(json.dumps(summary, indent=1) + "\n")
    for name, row in results.items():
        print(f"{name:42s}", " ".join(f"{key} {value:.4g}" for key, value in row.items()))


if __name__ == "__main__":
    main()
