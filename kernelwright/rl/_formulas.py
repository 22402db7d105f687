"""Descriptions of the reward formulas for display, and attempts on which to compare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from kernelwright.records import TimingSample
from kernelwright.rl.rewards import REWARDS, Attempt


class Formula(NamedTuple):
    """A reward formula for display: the formula in a line, its publication, and the URL of that."""

    line: str
    source: str
    url: str


FORMULAS: Final[Mapping[str, Formula]] = MappingProxyType(
    {
        "kernelwright": Formula(
            "right on its own device: 0.1 + max(0, log(low end of the speedup over the better baseline / (1 + noise)))",
            "this project",
            "",
        ),
        "log-speedup": Formula(
            "right: 1 + log(speedup over the better baseline), 0.1 at least; else 0; for writers that cannot cheat",
            "this project",
            "",
        ),
        "auto-triton": Formula(
            "right and a kernel of its own: 1; else 0", "AutoTriton, 2025", "https://arxiv.org/abs/2507.05687"
        ),
        "kevin": Formula(
            "right and a kernel of its own: 0.3 + speedup; else 0", "Kevin, 2025", "https://arxiv.org/abs/2507.11948"
        ),
        "cuda-l1": Formula(
            "right: median of the mean speedups of 7 buckets of runs, rounded towards 1; no score where they vary",
            "CUDA-L1, 2025",
            "https://arxiv.org/abs/2507.14111",
        ),
        "cuda-l2": Formula(
            "right: mean speedup of the runs - error - 1e-5 * length; else 0",
            "CUDA-L2, 2025",
            "https://arxiv.org/abs/2512.02551",
        ),
        "dr-kernel": Formula(
            "right: 0.5 + 0.5 * min(speedup, 3) + 0.5 * own share of the time; a decoy: -1; else 0",
            "Dr. Kernel, 2026",
            "https://arxiv.org/abs/2602.05885",
        ),
        "cuda-agent": Formula(
            "wrong: -1; right: 1; 5% faster than eager: 2; than torch.compile as well: 3",
            "CUDA Agent, 2026",
            "https://arxiv.org/abs/2602.24286",
        ),
    }
)
"""The descriptions by the names of :data:`~kernelwright.rl.REWARDS`."""


def _run_pairs(*ratios: float) -> tuple[tuple[float, float], ...]:
    """Twenty-one runs whose speedups cycle through ``ratios``."""
    return tuple((ratios[number % len(ratios)], 1.0) for number in range(21))


IDLE: Final = Attempt(
    True, speedup=1.0, over_compile=1.0, surely=0.97, own_share=1.0, length=1000, runs=_run_pairs(0.99, 1.0, 1.01)
)
"""An honest kernel that gains nothing: right, its own, and as fast as PyTorch."""

CANONICAL: Final[Mapping[str, Attempt]] = MappingProxyType(
    {
        "wrong": Attempt(False, own_share=1.0, length=1000),
        "right, as fast": IDLE,
        "2x, sure": Attempt(
            True, speedup=2.0, over_compile=2.0, surely=1.93, own_share=1.0, length=1000,
            runs=_run_pairs(1.98, 2.0, 2.02),
        ),
        "2x, noisy": Attempt(
            True, speedup=2.0, over_compile=2.0, surely=0.7, own_share=1.0, length=1000,
            runs=_run_pairs(0.7, 2.0, 3.5, 1.2),
        ),
        "cheat, believed": Attempt(
            True, speedup=50.0, over_compile=50.0, own_share=1.0, length=1000, runs=_run_pairs(49.95, 50.0, 50.05)
        ),
        "cheat, refused": Attempt(False, own_share=1.0, length=1000),
    }
)  # fmt: skip
"""Attempts on which formulas are compared. *believed* is a naive evaluator's result for a cheat: 50 times as fast.
*refused* is the referee's result for the same kernel."""


def payments(attempt: Attempt) -> dict[str, float | None]:
    """The reward of an attempt by the name of each formula; None if a formula gives no score."""
    return {name: reward(attempt) for name, reward in REWARDS.items()}


def runs_of(samples: Sequence[TimingSample], baseline: str = "eager") -> tuple[tuple[float, float], ...]:
    """(baseline, candidate) milliseconds of each turn; only turns of the confirmation if there was one."""
    phase = "confirm" if any(sample.phase == "confirm" for sample in samples) else "search"
    turns: dict[tuple[int, int], dict[str, float]] = {}
    for sample in samples:
        if sample.phase == phase:
            turns.setdefault((sample.process, sample.pair), {})[sample.role] = sample.latency_ms
    return tuple((turn[baseline], turn["candidate"]) for turn in turns.values() if {baseline, "candidate"} <= set(turn))
