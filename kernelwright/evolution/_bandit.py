"""The bandit that chooses the operator and the model of the next step by their gain for their cost.

A cost-aware upper confidence bound (Auer, Cesa-Bianchi and Fischer, Machine Learning 47, 2002). An arm's worth is its
gain over its cost; the bound adds its uncertainty. Costs are counted in average steps: half by dollars and half by
seconds of the referee, or by one of them if a run has no cost in the other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_CURIOSITY = 0.5
_WANDERING = 0.2  # share of steps that are drawn by the arms' weights alone
_FORGETTING = 0.98  # factor on earlier results with every step: an arm that paid early need not pay late
ANY = "any"  # the operator of an arm that is a model alone


class Arm(NamedTuple):
    """An operator with a model; the model is empty if the run has only one."""

    operator: str
    model: str = ""


class Tally(NamedTuple):
    """The totals of an arm: steps, gain (log-ratio over the parent) and cost. Older steps count less."""

    steps: float = 0.0
    gain: float = 0.0
    cost_usd: float = 0.0
    device_s: float = 0.0


class Bandit:
    """The gains and costs of every arm of one problem so far."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        """``weights``: how often each operator is drawn before anything is known."""
        self._weights = dict(weights)
        self._tallies: dict[Arm, Tally] = {}

    def learn(self, arm: Arm, *, gain: float, cost_usd: float, device_s: float) -> None:
        """Record one step. Its gain is 0 if it failed or brought no gain that a race confirmed."""
        for known, tally in self._tallies.items():
            self._tallies[known] = Tally(*(_FORGETTING * number for number in tally))
        before = self._tallies.get(arm, Tally())
        step = Tally(1.0, max(gain, 0.0), cost_usd, device_s)
        self._tallies[arm] = Tally(*(old + new for old, new in zip(before, step, strict=True)))

    def add(self, arm: Arm, *, gain: float = 0.0, device_s: float = 0.0) -> None:
        """Add to an earlier step: the gain of its kernel's later race, and the referee's seconds for that race."""
        known = self._tallies.get(arm, Tally())
        self._tallies[arm] = known._replace(gain=known.gain + max(gain, 0.0), device_s=known.device_s + device_s)

    def fail(self, arm: Arm, *, cost_usd: float) -> None:
        """Record a step that gave nothing to judge. It gains nothing and costs at least as much as an average step.

        Otherwise an arm that fails at no cost would look as good as one that was never tried.
        """
        whole = self._everything()
        average_usd, average_s = (
            total / whole.steps if whole.steps else 0.0 for total in (whole.cost_usd, whole.device_s)
        )
        self.learn(arm, gain=0.0, cost_usd=max(cost_usd, average_usd), device_s=average_s)

    def _everything(self) -> Tally:
        return Tally(*(sum(numbers) for numbers in zip(*self._tallies.values(), strict=True)))

    @property
    def state(self) -> Mapping[Arm, Tally]:
        """The totals of each arm that was tried."""
        return self._tallies

    def choose(self, arms: Sequence[Arm], rng: random.Random) -> Arm:
        """The arm of the highest bound among ``arms``. In 20% of the calls, an arm drawn by its weight."""
        weights = [self._weights.get(arm.operator, 0.0) for arm in arms]
        if not any(weights):
            weights = [1.0] * len(arms)
        if rng.random() < _WANDERING or not self._tallies:
            return rng.choices(list(arms), weights=weights)[0]
        total = sum(weights)
        known = self._everything()
        each = zip(arms, weights, strict=True)
        bounds = {arm: self._bound(arm, weight * len(arms) / total, known) for arm, weight in each}
        return max(arms, key=lambda arm: bounds[arm])

    def _bound(self, arm: Arm, weight: float, everything: Tally) -> float:
        tally = self._tallies.get(arm, Tally())
        average = everything.gain / everything.steps
        # prior: as if the arm had been tried ``weight`` times with the average gain of all arms
        worth = (tally.gain + weight * average) / (self._cost(tally, everything) + 1.0)
        scale = max(average, 1e-3)
        doubt = math.sqrt(math.log(1.0 + everything.steps) / (1.0 + tally.steps))
        return worth / scale + _CURIOSITY * weight * doubt

    def _cost(self, tally: Tally, everything: Tally) -> float:
        """The cost of an arm in average steps."""
        parts = [
            own * everything.steps / total
            for own, total in ((tally.cost_usd, everything.cost_usd), (tally.device_s, everything.device_s))
            if total > 0
        ]
        return sum(parts) / len(parts) if parts else tally.steps
