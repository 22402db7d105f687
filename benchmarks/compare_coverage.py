"""How often the interval of ``kernelwright compare`` holds a ratio that is known, over simulated pairs of runs.

    python benchmarks/compare_coverage.py

Effects over problems are normal, as skewed as an exponential distribution, or the same everywhere, so that the clock's
noise (2% a confirmation) is all there is.
"""

from __future__ import annotations

import math

import numpy as np

from kernelwright.campaign.paired import Measured, paired_means

TRIALS, TRUTH, SPREAD, NOISE = 300, 0.1, 0.3, 0.02
EFFECTS = {
    "normal": lambda rng, count: rng.normal(TRUTH, SPREAD, count),
    "skewed": lambda rng, count: TRUTH + SPREAD * (rng.exponential(1.0, count) - 1.0),
    "noise": lambda rng, count: np.full(count, TRUTH),
}


def main() -> None:
    """Print the table in Markdown."""
    print("| effects | problems | holds the truth | width |\n|---|---|---|---|")
    for kind, effects in EFFECTS.items():
        for count in (3, 5, 9, 30):
            rng = np.random.default_rng(count)
            ratios = [ratio_of(rng, effects(rng, count)) for _ in range(TRIALS)]
            held = sum(ratio.low <= math.exp(TRUTH) <= ratio.high for ratio in ratios) / TRIALS
            width = float(np.median([ratio.high / ratio.low for ratio in ratios]))
            print(f"| {kind} | {count} | {held:.1%} | {width:.2f} |")


def ratio_of(rng, effect):
    """The ratio of two runs as measured."""
    base = rng.normal(0.5, 0.6, len(effect))
    a, b = ([Measured(v, NOISE) for v in rng.normal(true, NOISE)] for true in (base + effect, base))
    return paired_means(a, b).ratio


if __name__ == "__main__":
    main()
