"""Selection of the kernel that the next one is made from. Each method is a function of the choices and a random number.

``contrast`` draws several kernels of different speeds, as CUDA-L1 (arXiv:2507.14111) does for its prompts.

Sources: ``sigmoid`` and ``power`` as in ShinkaEvolve (arXiv:2509.19349): weights by a sigmoid of the distance from the
median in median absolute deviations, or by a power of the rank, both smaller for kernels with many children;
``tournament``: Miller and Goldberg, "Genetic algorithms, tournament selection, and the effects of noise" (1995);
``curiosity``: Cully and Demiris, "Quality and diversity optimization" (arXiv:1708.09251).
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kernelwright.errors import UsageError

_STEEPNESS = 10.0  # of the sigmoid, a unit being one median absolute deviation
_POWER = 1.0
_BEAM = 3
_TOURNAMENT = 3
_BUCKET = math.log(1.1)
_LEAST_SPREAD = 0.01  # as a log-ratio: differences below it are noise


class Choice(NamedTuple):
    """A kernel that may become a parent.

    Attributes:
        level: the log of its speedup; for kernels that were not timed, any number that orders them.
        children: number of kernels that were made from it.
        finds: number of its children that filled a new cell or won one.
    """

    sha256: str
    level: float
    children: int = 0
    finds: int = 0


Selector = Callable[[Sequence[Choice], random.Random], Choice]


def _weighted(choices: Sequence[Choice], weights: Sequence[float], rng: random.Random) -> Choice:
    return rng.choices(list(choices), weights=[max(weight, 1e-12) for weight in weights])[0]


def sigmoid(choices: Sequence[Choice], rng: random.Random) -> Choice:
    """Draw with the weight sigmoid(10 (level - median) / MAD) / (1 + children)."""
    levels = [choice.level for choice in choices]
    middle = statistics.median(levels)
    spread = max(statistics.median(abs(level - middle) for level in levels), _LEAST_SPREAD)
    weights = [_logistic(_STEEPNESS * (c.level - middle) / spread) / (1 + c.children) for c in choices]
    return _weighted(choices, weights, rng)


def _logistic(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-min(max(x, -60.0), 60.0)))


def power(choices: Sequence[Choice], rng: random.Random) -> Choice:
    """Draw with a weight that falls with the rank, 1, 1/2, 1/3..., and with the number of children."""
    ranked = _ranked(choices)
    return _weighted(ranked, [1.0 / ((i + 1) ** _POWER * (1 + c.children)) for i, c in enumerate(ranked)], rng)


def beam(choices: Sequence[Choice], rng: random.Random) -> Choice:
    """The one of the three best that has the fewest children, so they take turns."""
    return min(_ranked(choices)[:_BEAM], key=lambda choice: choice.children)


def best(choices: Sequence[Choice], rng: random.Random) -> Choice:
    """The best one."""
    return _ranked(choices)[0]


def tournament(choices: Sequence[Choice], rng: random.Random) -> Choice:
    """The best of three random choices."""
    drawn = rng.sample(list(choices), min(_TOURNAMENT, len(choices)))
    return _ranked(drawn)[0]


def curiosity(choices: Sequence[Choice], rng: random.Random) -> Choice:
    """Draw with the weight (1 + finds) / (2 + children): the share of children that found something."""
    return _weighted(choices, [(1 + choice.finds) / (2 + choice.children) for choice in choices], rng)


def uniform(choices: Sequence[Choice], rng: random.Random) -> Choice:
    """Any of them."""
    return rng.choice(list(choices))


def contrast(choices: Sequence[Choice], count: int, rng: random.Random) -> list[Choice]:
    """Draw at most ``count`` kernels of different speeds, one from each bucket; returns the slower ones first.

    A bucket holds kernels whose speeds differ by at most 10%. Its level is the mean of its kernels' levels. Buckets are
    drawn with the weight exp((level - mean level) / mean absolute deviation).
    """
    buckets: dict[int, list[Choice]] = {}
    for choice in choices:
        buckets.setdefault(math.floor(choice.level / _BUCKET), []).append(choice)
    levels = {number: statistics.fmean(c.level for c in found) for number, found in buckets.items()}
    drawn: list[Choice] = []
    while buckets and len(drawn) < count:
        left = sorted(buckets)
        mean = statistics.fmean(levels[number] for number in left)
        spread = max(statistics.fmean(abs(levels[number] - mean) for number in left), _LEAST_SPREAD)
        weights = [math.exp(min((levels[number] - mean) / spread, 30.0)) for number in left]
        drawn.append(rng.choice(buckets.pop(rng.choices(left, weights=weights)[0])))
    return sorted(drawn, key=lambda choice: choice.level)


def _ranked(choices: Sequence[Choice]) -> list[Choice]:
    return sorted(choices, key=lambda choice: -choice.level)


SELECTORS: Mapping[str, Selector] = {
    "beam": beam,
    "best": best,
    "curiosity": curiosity,
    "power": power,
    "sigmoid": sigmoid,
    "tournament": tournament,
    "uniform": uniform,
}


def selector(name: str) -> Selector:
    """The selection method with a name.

    Raises:
        UsageError: no such method.
    """
    if name not in SELECTORS:
        raise UsageError(f"unknown selection {name!r}", hint=f"known: {', '.join(SELECTORS)}")
    return SELECTORS[name]
