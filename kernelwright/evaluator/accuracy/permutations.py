"""Test whether two samples of a random output come from one distribution, by permutations, ranks and kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
FloatArray = NDArray[np.float64]
Float32Array = NDArray[np.float32]
CHUNK = 4096  # elements handled at once, so that they stay in cache
SAMPLED_ELEMENTS = 4096
_SHIFTED_ELEMENTS = 8192
_ORDERS = 500
_HASHES = 4


def rank_sum_p(first: Array, second: Array) -> float:
    """One-sided Mann-Whitney test: the chance that ``first`` ranks this high or higher if both are exchangeable.

    U counts the pairs in which ``first`` is the larger (ties count half, rounded down); its distribution is exact
    without ties, and an upper bound of the tail with them.
    """
    m, n = len(first), len(second)
    ordered = np.sort(second)
    below = np.searchsorted(ordered, first, side="left") + np.searchsorted(ordered, first, side="right")
    u = int(below.sum()) // 2
    return float(_rank_sum_tail(m, n)[u])


def two_sided(first: Array, second: Array) -> float:
    """Two-sided Mann-Whitney test: twice the smaller of both tails, 1 at most."""
    return min(1.0, 2.0 * min(rank_sum_p(first, second), rank_sum_p(second, first)))


@lru_cache(maxsize=16)
def _rank_sum_tail(m: int, n: int) -> FloatArray:
    """``P(U >= u)`` for u = 0 ... m n: partitions of u into at most m parts of at most n, over ``binomial(m+n, m)``."""
    ways = np.zeros((m + 1, m * n + 1))
    ways[0, 0] = 1.0
    for part in range(1, n + 1):
        for parts in range(1, m + 1):
            ways[parts, part:] += ways[parts - 1, :-part]
    counts = ways.sum(axis=0)
    return np.asarray(np.cumsum(counts[::-1])[::-1] / counts.sum())


def fisher_p(first: int, m: int, second: int, n: int) -> float:
    """Fisher's exact test, one-sided: ``first`` of m calls and ``second`` of n have a property; how high is ``first``?

    R. A. Fisher, "The logic of inductive inference", J. R. Statist. Soc. 98, 1935.
    """
    total = first + second
    return sum(math.comb(m, i) * math.comb(n, total - i) for i in range(first, min(m, total) + 1)) / math.comb(
        m + n, total
    )


def folds(calls: int) -> Iterator[tuple[slice, slice]]:
    """Yield (teaching, ranked) calls: even calls teach and odd ones are ranked, then the reverse."""
    yield slice(0, calls, 2), slice(1, calls, 2)
    yield slice(1, calls, 2), slice(0, calls, 2)


def spread_p(totals: FloatArray, k: int) -> float:
    """Test whether one side's totals lie nearer to the common median, as if its elements shared a component."""
    away = np.abs(totals - np.median(totals))
    return two_sided(away[:k], away[k:])


def determinism_p(x: FloatArray, y: FloatArray, slack: FloatArray) -> float:
    """Test whether the candidate's calls equal its first call more often than the reference's calls do (Fisher)."""
    ours, theirs = (int(np.count_nonzero(np.all(np.abs(r - x[0]) <= slack, axis=1))) for r in (x[1:], y))
    return fisher_p(ours, len(x) - 1, theirs, len(y))


def element_p(standard: Standard) -> float:
    """Test the element whose mean differs most: the ranks of its values, and how many exceed the middle of their range.

    The tests are Mann-Whitney's and Fisher's, two-sided. The p-value is multiplied by the number of random elements,
    which makes up for the choice of the element.
    """
    u, k = standard.u, standard.k
    at = int(np.argmax(np.abs(u[:k].mean(axis=0) - u[k:].mean(axis=0))))
    values = u[:, at].astype(np.float64)
    high = values > (values.min() + values.max()) / 2.0
    m, n, ours, theirs = k, len(u) - k, int(high[:k].sum()), int(high[k:].sum())
    fisher = 2.0 * min(fisher_p(ours, m, theirs, n), fisher_p(theirs, n, ours, m))
    p = min(two_sided(values[:k], values[k:]), fisher)
    return min(1.0, 2.0 * max(1, int(standard.random.sum())) * p)


def characteristic_kernel(u: Float32Array, rng: np.random.Generator) -> FloatArray:
    """A kernel of calls from the empirical characteristic function of their standardised values at four frequencies.

    T. W. Epps and K. J. Singleton, "An omnibus test for the two-sample problem using the empirical characteristic
    function", J. Statist. Comput. Simul. 26, 1986. Unlike bins or ranks it is smooth in the values: two sides that only
    round differently do not seem to differ where many values are equal.
    """
    columns = rng.choice(u.shape[1], min(u.shape[1], SAMPLED_ELEMENTS), replace=False)
    turn = np.exp(0.5j * u[:, np.sort(columns)])
    features = []
    for _ in range(4):  # frequencies 1/2, 1, 2 and 4
        mean = turn.mean(axis=1)
        features += [mean.real, mean.imag]
        turn = turn * turn
    table = np.stack(features, axis=1).astype(np.float64)
    table -= table.mean(axis=0)
    table /= np.maximum(table.std(axis=0), 1e-9)
    return np.asarray(table @ table.T)


def equality_kernel(x: FloatArray, y: FloatArray, rng: np.random.Generator) -> FloatArray:
    """A kernel that counts equal elements of two calls, estimated by hashing values to random signs."""
    values = (np.concatenate([x, y]) + 0.0).view(np.uint64)  # no negative zeros
    kernel = np.zeros((len(values), len(values)))
    for _ in range(_HASHES):
        odd, offset = rng.integers(0, 1 << 63, 2, dtype=np.uint64)
        mixed = (values ^ offset) * (odd | np.uint64(1))
        mixed = (mixed ^ (mixed >> np.uint64(32))) * (odd | np.uint64(1))
        signs = np.where(mixed >> np.uint64(63), np.float32(1.0), np.float32(-1.0))
        kernel += signs @ signs.T
    return kernel


def serial_p(gram: FloatArray, rng: np.random.Generator) -> float:
    """Test whether calls resemble the call before. Null: the candidate's calls are exchangeable in time.

    The statistic is the mean rank of the inner products of successive calls among those of all pairs. Its mean and
    variance come from random orders of the calls (A. Wald and J. Wolfowitz, "An exact test for randomness in the
    non-parametric case based on serial correlation", Ann. Math. Statist. 14, 1943). Its tail is taken as normal.
    """
    k = len(gram)
    above = np.triu_indices(k, 1)
    ranks = np.zeros((k, k))
    ranks[above] = _mid_ranks(gram[above])
    ranks += ranks.T
    orders = np.argsort(rng.random((_ORDERS, k)), axis=1)
    null = ranks[orders[:, :-1], orders[:, 1:]].mean(axis=1)
    observed = float(np.mean(np.diagonal(ranks, 1)))
    spread = float(null.std())
    return math.erfc(abs(observed - float(null.mean())) / spread / math.sqrt(2.0)) if spread > 0.0 else 1.0


def shifts_p(standard: Standard, rng: np.random.Generator) -> float:
    """Test whether a call is a shifted copy of the call before, as if a counter served as randomness.

    The statistic is the largest cross-correlation over all shifts, ranked over disjoint pairs of successive calls. It
    is computed twice: from the plain values, and with the signs of the elements' means, because dropout would shift its
    mask but not the values under it.
    """
    u, k = standard.u, standard.k
    start = int(rng.integers(0, max(1, u.shape[1] - _SHIFTED_ELEMENTS + 1)))
    part = slice(start, start + _SHIFTED_ELEMENTS)
    p = 1.0
    for window in (u[:, part], u[:, part] * standard.signs[part]):
        spectra = np.fft.rfft(window, axis=1)
        sides = [side[: len(side) // 2 * 2] for side in (spectra[:k], spectra[k:])]
        p = min(p, 2.0 * rank_sum_p(*(_largest_correlation(side, window.shape[1]) for side in sides)))
    return p


def _largest_correlation(spectra: NDArray[np.complexfloating[Any, Any]], elements: int) -> FloatArray:
    """The largest correlation of each even row with the next row, over all cyclic shifts."""
    products = np.fft.irfft(spectra[0::2] * spectra[1::2].conj(), elements, axis=1)
    return np.asarray(np.abs(products).max(axis=1), dtype=np.float64)


def _mid_ranks(values: FloatArray) -> FloatArray:
    """Ranks from 0. Equal values share their mean rank."""
    ordered = np.sort(values)
    return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") - 1) / 2.0


def repeats_p(standard: Standard, rng: np.random.Generator) -> float:
    """Test whether two of the candidate's calls agree on more elements than any two independent calls would.

    Let N be the number of elements in which two calls differ, with mean mu and variance v over the reference's pairs.
    The p-value is the bound P(N <= mu - t) <= exp(-t^2 / (2 max(v, mu))), times the number of pairs. Source: A. Maurer,
    "A bound on the deviation probability for sums of non-negative random variables", JIPAM 4, 2003. The bound is exact
    for independent elements, with mu in the denominator; v stands in for dependent elements.
    """
    u, k = standard.u, standard.k
    columns = np.flatnonzero(standard.random)
    if columns.size > SAMPLED_ELEMENTS:
        columns = np.sort(rng.choice(columns, SAMPLED_ELEMENTS, replace=False))
    sampled = np.ascontiguousarray(u[:, columns])
    ours, theirs = _differences(sampled[:k]), _differences(sampled[k:])
    mean, variance = float(theirs.mean()), float(theirs.var())
    short = max(0.0, mean - float(ours.min()))
    return min(1.0, len(ours) * math.exp(-short * short / (2.0 * max(variance, mean, 1e-9))))


def _differences(u: Float32Array) -> NDArray[np.int64]:
    """Number of elements in which two calls differ, for all pairs."""
    return np.concatenate([np.count_nonzero(np.abs(u[i + 1 :] - u[i]) > 1e-3, axis=1) for i in range(len(u) - 1)])


def axes(shape: Sequence[int]) -> list[int]:
    """Dimensions in which neighbours are compared: all that are longer than 1, at most the first and the last two."""
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    return axes if len(axes) <= 3 else [axes[0], *axes[-2:]]


def neighbours_p(standard: Standard, step: int) -> float:
    """Test whether products of elements that lie ``step`` apart in memory are distributed like the reference's.

    Such elements are neighbours along the dimension with this stride (seldom a row's end and the next row's start).
    The sums of the products are ranked, plain and with the signs of the elements' means: dropout makes elements deviate
    from zero, whichever side they are on. The witness of single products is ranked, too.
    """
    u, k, signs = standard.u, standard.k, standard.signs
    plain, signed, kernel = np.zeros(len(u)), np.zeros(len(u)), np.zeros((len(u), len(u)))
    for start in range(0, u.shape[1] - step, CHUNK):
        end = min(start + CHUNK, u.shape[1] - step)
        products = u[:, start:end] * u[:, start + step : end + step]
        plain += products.sum(axis=1)
        signed += products @ (signs[start:end] * signs[start + step : end + step])
        kernel += products @ products.T
    p = min(two_sided(plain[:k], plain[k:]), two_sided(signed[:k], signed[k:]), witness(kernel, k))
    return min(1.0, 3.0 * p)


def witness(kernel: FloatArray, k: int) -> float:
    """Witness test on a kernel matrix over all calls, the candidate's k first. Null: exchangeable calls.

    The witness of a call is its mean kernel with the candidate's teaching half minus that with the reference's.
    """
    p = 1.0
    for teach, rank in folds(min(k, len(kernel) - k)):
        witness = kernel[:, :k][:, teach].mean(axis=1) - kernel[:, k:][:, teach].mean(axis=1)
        p = min(p, 2.0 * rank_sum_p(witness[:k][rank], witness[k:][rank]))
    return p


class Standard(NamedTuple):
    """All calls, standardised element by element: u is (calls, elements), the candidate's k calls first.

    random: mask of the random elements; u is 0 at the others. signs: sign of the mean of each element.
    """

    u: Float32Array
    k: int
    signs: Float32Array
    random: NDArray[np.bool_]
