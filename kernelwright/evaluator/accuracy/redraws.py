"""Random outputs of timed calls. No single output is right, but each must look like a draw, and like a fresh one.

Inputs of timed calls are never repeated. So the tests of ``randomness``, which compare many calls on the same input,
cannot be used. Instead the candidate's output is compared with the reference's on the same input:

- by size, the mean and spread over the elements (:func:`alike_in_size`). The limits come from the reference's own draws
  in the check, because elements are not independent if whole channels are left out. Over many calls, the candidate's
  size must be the larger one about half of the time (:class:`Sizes`);
- by correlation with outputs of earlier calls (:class:`Redraws`), because one mask that is kept for all calls has the
  right distribution, too. The reference's own outputs show how much correlation arises by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelwright.evaluator.accuracy.arrays import sum_of_squares
from kernelwright.evaluator.figures.intervals import binomial_tail

Array = NDArray[Any]
FloatArray = NDArray[np.float64]
Float32Array = NDArray[np.float32]
ComplexArray = NDArray[np.complexfloating[Any, Any]]

_FEW = 256  # outputs of fewer elements say too little about whether they were drawn anew
_KEPT = 32  # earlier outputs that a new one is compared with
_TOGETHER = 8  # earlier outputs that are summed, at most
_ELEMENTS_EACH = 4096  # elements needed for each summed output; with fewer the others hide a repeated one
_LEVELS = 16  # quantiles that replace values
_SAMPLED = 4096  # elements from which quantiles are estimated
_LEAST_READS = 12  # outputs that are read before any decision
_SURELY = 1e-6  # p-value at which sizes differ for sure
_SAME_SIZE = 0.01  # sizes within this share of each other are equal
_NOTHING = 1e-12  # least power, for scores that are all the same
_FAR = 10.0  # "far above" the reference's largest correlation: this many times its distance from the median,
_FAR_BESIDES = 0.02  # plus this much
_FAR_READS = 3
_TOP_READS = 20  # the largest correlations are all the candidate's: 2 ** -20 by chance
_SIZE_ERRORS = 8.0  # standard errors by which sizes may differ if elements are independent
_WORST_OF_DRAWS = 2.5  # two dozen pairs of independent draws hardly exceed this; if they do, the limit grows with them


class Redraws:
    """Tests whether a candidate's random outputs resemble its earlier ones no more than the reference's do.

    An output's number is its largest correlation, under any cyclic shift, with the (summed) outputs of earlier calls.
    Values and magnitudes are both correlated, replaced by their quantiles, because a few large values would make any
    two outputs alike. Honest draws of both sides are exchangeable, and so are their numbers. A candidate is refused if
    the twenty largest numbers of all are its own, or if three of its own lie far above all of the reference's.
    """

    def __init__(self) -> None:
        self.sizes = Sizes()
        self._rng = np.random.default_rng(0)  # chooses the elements that quantiles are estimated from; not secret
        self._before: dict[int, _Before] = {}
        self._found: dict[int, list[tuple[float, float]]] = {}  # by output: of the candidate, of the reference

    def fresh_process(self) -> None:
        """Forget earlier outputs, because new processes follow. The correlations found so far still count."""
        self._before.clear()

    def alike(self, ours: Array, theirs: Array, j: int) -> bool:
        """Add output j of one more call of both sides on the same input; False once the candidate repeats itself."""
        if ours.size < _FEW:
            return True
        spectra = np.fft.rfft(np.stack([self._scores(values) for values in (ours, theirs)]))
        before = self._before.setdefault(j, _Before(ours.size))
        found = self._found.setdefault(j, [])
        if (largest := before.correlations(spectra)) is not None:
            found.append(largest)
        before.add(spectra)
        return not _too_alike(found)

    def _scores(self, values: Array) -> Float32Array:
        """(2, elements): values and magnitudes as levels between quantiles, of mean 0 and power 1."""
        flat = np.asarray(values, dtype=np.float64).ravel()
        return np.stack([self._levels(numbers) for numbers in (flat, np.abs(flat))])

    def _levels(self, numbers: FloatArray) -> Float32Array:
        """Levels of mean 0 and power 1. Non-finite values count as the mean; all are 0 if there is only one level."""
        finite = np.isfinite(numbers)
        sample = numbers[finite]
        if not sample.size:
            return np.zeros(numbers.size, dtype=np.float32)
        if sample.size > _SAMPLED:
            sample = sample[self._rng.integers(0, sample.size, _SAMPLED)]
        edges = np.unique(np.quantile(sample, np.arange(1, _LEVELS) / _LEVELS, method="lower"))
        levels = np.searchsorted(edges, numbers, side="right").astype(np.float32)
        levels = np.where(finite, levels - levels[finite].mean(dtype=np.float64), np.float32(0.0)).astype(np.float32)
        power = sum_of_squares(levels)
        return levels / np.float32(math.sqrt(power)) if power > 0.0 else levels


class _Before:
    """Spectra of both sides' scores in earlier calls, summed over a few calls each."""

    def __init__(self, elements: int) -> None:
        self._elements = elements
        self._together = min(max(elements // _ELEMENTS_EACH, 1), _TOGETHER)
        self._sums: list[ComplexArray] = []  # each (sides, transforms, frequencies)
        self._in_last = 0

    def add(self, spectra: ComplexArray) -> None:
        if self._sums and self._in_last < self._together:
            self._sums[-1] = self._sums[-1] + spectra
            self._in_last += 1
        else:
            self._sums = [*self._sums, spectra][-(_KEPT // self._together) :]
            self._in_last = 1

    def correlations(self, spectra: ComplexArray) -> tuple[float, float] | None:
        """Each side's largest correlation with any sum, under any shift; None without earlier calls."""
        if not self._sums:
            return None
        largest = np.zeros(len(spectra))
        for total in self._sums:
            power = np.mean(np.square(np.abs(total)), axis=-1, keepdims=True)  # exact but for the first and last one
            product = spectra * total.conj() / np.sqrt(np.maximum(power, _NOTHING))
            shifted = np.fft.irfft(product, self._elements)
            np.maximum(largest, np.abs(shifted).max(axis=(1, 2)), out=largest)
        return float(largest[0]), float(largest[1])


def _too_alike(found: Sequence[tuple[float, float]]) -> bool:
    if len(found) < _LEAST_READS:
        return False
    ours, theirs = np.array(found).T
    highest = float(theirs.max())
    far = highest + _FAR * (highest - float(np.median(theirs))) + _FAR_BESIDES
    return bool(np.count_nonzero(ours > highest) >= _TOP_READS or np.count_nonzero(ours > far) >= _FAR_READS)


# ---------------------------------------------------------------------------------------------------------- size


class Sizes:
    """Sign test: whether the candidate's mean and spread are larger than the reference's in about half of all calls.

    A single read proves nothing if a few elements are large, or if a whole output is scaled at random. Differences of a
    hundredth are ignored, because rounding is always to the same side.
    """

    def __init__(self) -> None:
        self._larger: dict[tuple[int, int], list[int]] = {}  # (output, mean or spread): [ours, theirs]

    def alike(self, ours: Array, theirs: Array, j: int) -> bool:
        """Count output j of one more call; False once one side is surely the larger one too often."""
        sure = False
        (mean, spread), (other, wanted) = (_mean_and_spread(values) for values in (ours, theirs))
        differences = (mean - other, abs(other) + math.sqrt(wanted)), (spread - wanted, wanted)
        for k, (difference, whole) in enumerate(differences):
            larger = self._larger.setdefault((j, k), [0, 0])
            larger[0] += difference > _SAME_SIZE * whole
            larger[1] += -difference > _SAME_SIZE * whole
            sure = sure or 2.0 * binomial_tail(max(larger), sum(larger), 0.5) < _SURELY
        return not sure


def size_limits(draws: Sequence[Array]) -> tuple[float, float]:
    """Limits for the distance of two draws in mean and in spread, in standard errors of independent elements.

    Args:
        draws: the reference's outputs of many calls on one input.
    """
    found = [_distances(a, b) for a, b in zip(draws[0::2], draws[1::2], strict=False)]
    pairs = [pair for pair in found if pair is not None]
    if len(pairs) < len(found):  # which elements are finite is random, too
        return math.inf, math.inf
    worst = (max((pair[k] for pair in pairs), default=0.0) for k in range(2))
    mean, spread = (_SIZE_ERRORS * max(1.0, value / _WORST_OF_DRAWS) for value in worst)
    return mean, spread


def alike_in_size(ours: Array, theirs: Array, limits: tuple[float, float]) -> bool:
    """Whether two draws of a random output could come from one distribution, by mean and spread over the elements.

    The limits are loose, because each side is a single draw. The check tests the distribution itself.

    Args:
        limits: from :func:`size_limits`.
    """
    if math.isinf(limits[0]):
        return True
    distances = _distances(ours, theirs)
    return distances is not None and all(d <= limit for d, limit in zip(distances, limits, strict=True))


@np.errstate(invalid="ignore", over="ignore")  # a signalling NaN among hostile bytes is an invalid cast
def _distances(ours: Array, theirs: Array) -> tuple[float, float] | None:
    """Distances in mean and in spread, in standard errors; None if different elements are finite."""
    a, b = (np.asarray(x, dtype=np.float64).ravel() for x in (ours, theirs))
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return None
    a, b = a[np.isfinite(a)], b[np.isfinite(b)]
    if a.size < 2:
        return 0.0, 0.0
    found = []
    for x, y in ((a, b), (np.square(a - b.mean()), np.square(b - b.mean()))):
        error = math.sqrt((float(x.var()) + float(y.var())) / x.size)
        away = max(abs(float(x.mean()) - float(y.mean())) - 1e-12, 0.0)
        found.append(away / error if error > 0.0 else (math.inf if away else 0.0))
    return found[0], found[1]


@np.errstate(invalid="ignore", over="ignore")
def _mean_and_spread(values: Array) -> tuple[float, float]:
    finite = np.asarray(values, dtype=np.float64).ravel()
    finite = finite[np.isfinite(finite)]
    return (float(finite.mean()), float(finite.var())) if finite.size else (0.0, 0.0)
