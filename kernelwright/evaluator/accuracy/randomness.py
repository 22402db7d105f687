"""Is a random output drawn from the reference's distribution? Dropout, random noise, sampling: no single call is right.

Runs in the referee on numpy arrays only. K calls of the candidate on one input stand against K draws of the reference
on the same input. Unless said otherwise the null hypothesis of a test is that all these calls are exchangeable: the
candidate's are independent draws of the same random vector as the reference's. How the elements of one output depend on
each other is left open (a linear layer after dropout correlates them all), which is why no test sums z-scores over
elements into a chi-square: it would need independent elements.

Instead every call is reduced to one number, and the numbers of the candidate's calls are ranked against those of the
reference's (Mann and Whitney, "On a test of whether one of two random variables is stochastically larger than the
other", Ann. Math. Statist. 18, 1947). That test is exact for any output. Numbers are of two kinds:

- fixed ones, such as the correlation of neighbouring elements within a call;
- witnesses, where what to look for is not known beforehand, such as which elements have another mean: half of the calls
  say in which direction the two sides differ, and the calls of the other half are ranked along it (Kübler et al., "A
  witness two-sample test", AISTATS 2022), then the other way round.

Elements are standardised by mean and deviation over both sides' calls, which favours neither. Where the reference takes
few values at an element (dropout: zero and one more), the candidate's must be among them to within the error budget.
The p-values are combined by Bonferroni's inequality. They are for the record: reasons name none, and no value.

Not found: dependence that is weak or between far elements only; a generator that starts from the same seed in every
process, or repeats after more calls than were made; and reduced precision where an element takes many values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelwright.errors import UsageError

Array = NDArray[Any]
FloatArray = NDArray[np.float64]
Float32Array = NDArray[np.float32]

MIN_CALLS = 32  # 16 calls against 16 can reach p = 3e-9 in a witness test
_CHUNK = 4096  # elements handled at once, so that they stay in cache
_MAX_ATOMS = 4  # more values than this in half of the reference's calls, and an element counts as continuous
_MAX_FACTOR = 40.0  # as in the error budget: largest and 99th percentile of |e| / s over the budget
_Q99_FACTOR = 6.0
_RANDOM_FACTOR = 64.0  # a spread of fewer budgets than this is rounding, not randomness
_SAMPLED_ELEMENTS = 4096
_KEPT_CALLS = 4  # of each half, whose kept values are held against the budget
_SHIFTED_ELEMENTS = 8192
_ORDERS = 500
_HASHES = 4
_LARGEST = 1e150  # squares of larger numbers overflow
_DITHER = 0.35  # width of uniform noise on standardised values; its deviation is 0.1

_REASONS: Mapping[str, str] = {
    "determinism": "too many calls give the same",
    "values": "some values are none that the reference can take",
    "repeats": "two calls agree more than chance allows",
    "element": "an element is distributed otherwise than the reference's",
    "total": "the values are larger or smaller on average than the reference's",
    "spread": "the sum over all elements varies more or less than the reference's",
    "mean": "the averages of elements differ from the reference's",
    "variance": "the variances of elements differ from the reference's",
    "distribution": "the values are distributed otherwise than the reference's",
    "frequencies": "categories are not as frequent as the reference's",
    "pairs": "elements of one call depend on each other otherwise than the reference's",
    "calls": "calls depend on the call before",
    "shifts": "a call repeats the call before, shifted",
}
_NEIGHBOURS_REASON = "neighbouring elements depend on each other otherwise than the reference's"


class RandomReport(NamedTuple):
    """The judgement on one random output.

    p_values: by name of the test, each to be held against ``alpha`` over their number. load: the error of values that
    are kept, as a share of the budget (see :func:`judge_random`); nan where no element has few values.
    """

    passed: bool
    reason: str
    p_values: Mapping[str, float]
    load: float


def judge_random(
    candidate: Sequence[Array],
    reference: Sequence[Array],
    *,
    scale: Array | None = None,
    tolerance: float = 4.0,
    alpha: float = 1e-6,
    rng: np.random.Generator | None = None,
) -> RandomReport:
    """Judge one output by K calls of the candidate and K draws of the reference, all on the same input.

    Args:
        candidate, reference: one array a call, all of one shape (the caller has compared shapes and dtypes), in the
            order of the calls; at least 32 of each, 64 find more. The reference's may be float64.
        scale: the error scale ``s`` of honest rounding, of that shape; where an element can be zero, that of its other
            values (the largest over a few draws). None where values must be equal (integers).
        tolerance: the budget ``T`` of :func:`kernelwright.evaluator.accuracy.budget.tolerance`. Kept values must lie within
            40 T s of one of the reference's, and as a whole within T and 6 T like any other output; randomness that
            spreads an element by less than 64 T s is not told from rounding.
        alpha: how often an honest candidate may fail, at most.
        rng: decides which elements and orders are sampled; fresh from the operating system where None.

    Raises:
        UsageError: too few calls.
    """
    if min(len(candidate), len(reference)) < MIN_CALLS:
        raise UsageError("too few calls to judge randomness", hint=f"give at least {MIN_CALLS} of each side")
    rng = np.random.default_rng() if rng is None else rng
    if np.size(candidate[0]) == 0:
        return RandomReport(True, "", {}, math.nan)
    x, y = _finite(np.stack(candidate), np.stack(reference))
    s = np.zeros(x.shape[1]) if scale is None else np.broadcast_to(scale, np.shape(candidate[0])).reshape(-1) * 1.0
    values = _compare_values(x, y, s, tolerance, rng)
    standard = _standardise(x, y, _RANDOM_FACTOR * tolerance * s)
    p_values = {
        "determinism": _determinism_p(x, y, _MAX_FACTOR * tolerance * s),
        "values": values.p,
        "repeats": _repeats_p(standard, rng),
    }
    _dither(standard, rng)
    p_values |= _tests(standard, np.shape(candidate[0]), rng)
    if scale is None:
        p_values["frequencies"] = _witness(_equality_kernel(x, y, rng), len(x))
    reason = _verdict(p_values, values.load, alpha)
    return RandomReport(not reason, reason, p_values, values.load)


def _verdict(p_values: Mapping[str, float], load: float, alpha: float) -> str:
    """The reason of the smallest p-value that is too small; empty where none is and kept values are right."""
    if load > 1.0:
        return "values that are kept are wrong by more than the error budget"
    name = min(p_values, key=lambda name: p_values[name])
    if p_values[name] > alpha / len(p_values):
        return ""
    return _REASONS.get(name, _NEIGHBOURS_REASON)


# -------------------------------------------------------------------------------------------- exact rank tests


def rank_sum_p(first: Array, second: Array) -> float:
    """One-sided Mann-Whitney test: the chance that ``first`` ranks this high or higher where both are exchangeable.

    U counts the pairs in which ``first`` is the larger (ties count half, rounded down); its distribution is exact
    without ties, and an upper bound of the tail with them.
    """
    m, n = len(first), len(second)
    ordered = np.sort(second)
    below = np.searchsorted(ordered, first, side="left") + np.searchsorted(ordered, first, side="right")
    u = int(below.sum()) // 2
    return float(_rank_sum_tail(m, n)[u])


def _two_sided(first: Array, second: Array) -> float:
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


def _fisher_p(first: int, m: int, second: int, n: int) -> float:
    """Fisher's exact test, one-sided: ``first`` of m calls and ``second`` of n have a property; how high is ``first``?

    R. A. Fisher, "The logic of inductive inference", J. R. Statist. Soc. 98, 1935.
    """
    total = first + second
    return sum(math.comb(m, i) * math.comb(n, total - i) for i in range(first, min(m, total) + 1)) / math.comb(
        m + n, total
    )


def _folds(calls: int) -> Iterator[tuple[slice, slice]]:
    """Even calls teach and odd ones are ranked, then the other way round."""
    yield slice(0, calls, 2), slice(1, calls, 2)
    yield slice(1, calls, 2), slice(0, calls, 2)


def _witness(kernel: FloatArray, k: int) -> float:
    """Witness test on a kernel matrix over all calls, the candidate's k first. Null: exchangeable calls.

    The witness of a call is its mean kernel with the teaching half of the candidate minus that of the reference.
    """
    p = 1.0
    for teach, rank in _folds(min(k, len(kernel) - k)):
        witness = kernel[:, :k][:, teach].mean(axis=1) - kernel[:, k:][:, teach].mean(axis=1)
        p = min(p, 2.0 * rank_sum_p(witness[:k][rank], witness[k:][rank]))
    return p


# ----------------------------------------------------------------------------------------------- preparation


class _Standard(NamedTuple):
    """All calls, standardised element by element: u is (calls, elements), the candidate's k calls first.

    random: which elements are; the others are 0. signs: of the mean of each element.
    """

    u: Float32Array
    k: int
    signs: Float32Array
    random: NDArray[np.bool_]


def _finite(x: Array, y: Array) -> tuple[FloatArray, FloatArray]:
    """Both as (calls, elements) of float64, with nan and infinities as three numbers that nothing else is."""
    rows = [values.reshape(len(values), -1).astype(np.float64) for values in (x, y)]
    if all(r.min() > -_LARGEST and r.max() < _LARGEST for r in rows):  # false where there is a nan
        return rows[0], rows[1]
    largest = max(float(np.max(np.abs(r), where=np.isfinite(r), initial=1.0)) for r in rows)
    bound = min(largest, _LARGEST)
    coded = [np.nan_to_num(r, nan=8.0 * bound, posinf=4.0 * bound, neginf=-4.0 * bound) for r in rows]
    coded = [np.where(np.isfinite(r), np.clip(c, -bound, bound), c) for r, c in zip(rows, coded, strict=True)]
    return coded[0], coded[1]


def _standardise(x: FloatArray, y: FloatArray, rounding: FloatArray) -> _Standard:
    """Elements that spread by ``rounding`` or less become 0."""
    calls, elements = len(x) + len(y), x.shape[1]
    u, signs = np.empty((calls, elements), dtype=np.float32), np.empty(elements, dtype=np.float32)
    random = np.empty(elements, dtype=np.bool_)
    for start in range(0, elements, _CHUNK):
        part = slice(start, start + _CHUNK)
        block = np.concatenate([x[:, part], y[:, part]])
        mean = block.mean(axis=0)
        block -= mean
        spread = np.sqrt(np.einsum("ij,ij->j", block, block) / calls)
        random[part] = spread > rounding[part]
        block *= np.where(random[part], 1.0 / np.where(random[part], spread, 1.0), 0.0)
        u[:, part], signs[part] = block, np.sign(mean)
    return _Standard(u, len(x), signs, random)


def _dither(standard: _Standard, rng: np.random.Generator) -> None:
    """Blur every call alike, so that ranks cannot tell two sides by rounding where their calls hardly differ at all.

    A shuffle, for one, has the same total at every call, and the candidate's differs by its rounding.
    """
    noise = np.empty(standard.u.shape[1], dtype=np.float32)
    weight = np.where(standard.random, np.float32(_DITHER), np.float32(0.0))
    for call in standard.u:
        rng.random(dtype=np.float32, out=noise)
        noise -= np.float32(0.5)
        call += noise * weight


# -------------------------------------------------------------------------------------------- kept values


class _Values(NamedTuple):
    """p: whether values occur that the reference has not. load: error of the kept ones as a share of the budget."""

    p: float
    load: float


def _compare_values(x: FloatArray, y: FloatArray, s: FloatArray, tolerance: float, rng: np.random.Generator) -> _Values:
    """Values where the reference has few: half of its calls say which, the other half says how often one is missed.

    Null: exchangeable calls. Two tests of each half: the number of values a call that are not among those known
    (ranked), and the number of calls with any such value (Fisher's test).
    """
    if not s.any() and x.shape[1] > _SAMPLED_ELEMENTS:
        columns = rng.choice(x.shape[1], _SAMPLED_ELEMENTS, replace=False)
        x, y, s = x[:, columns], y[:, columns], s[columns]
    p, load = 1.0, math.nan
    for teach, rank in _folds(min(len(x), len(y))):
        chosen = rng.choice(len(x[rank]), _KEPT_CALLS, replace=False)
        ours, theirs, kept = _unknown_values(x[rank], y[rank], y[teach], s, tolerance, chosen)
        calls = int(np.count_nonzero(ours)), len(ours), int(np.count_nonzero(theirs)), len(theirs)
        p = min(p, 4.0 * rank_sum_p(ours, theirs), 4.0 * _fisher_p(*calls))
        load = float(np.fmax(load, _kept_load(kept, s, tolerance)))
    return _Values(min(p, 1.0), load)


def _unknown_values(
    x: FloatArray, y: FloatArray, known: FloatArray, s: FloatArray, tolerance: float, chosen: NDArray[np.integer[Any]]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """How many values of each call of x and of y are none of ``known``; and the errors of the ``chosen`` calls of x.

    Errors are nan where a value is unknown, or where the reference's own values are not always the same.
    """
    ours, theirs, kept = np.zeros(len(x)), np.zeros(len(y)), np.full((len(chosen), x.shape[1]), np.nan)
    for start in range(0, x.shape[1], _CHUNK):
        part = slice(start, start + _CHUNK)
        slack = _MAX_FACTOR * tolerance * s[part]
        atoms, few = _atoms(known[:, part], slack, _MAX_ATOMS if s.any() else len(known))
        if not few.any():
            continue
        error, other = _distance(x[:, part], atoms), _distance(y[:, part], atoms)
        ours += np.count_nonzero((error > slack) & few, axis=1)
        theirs += np.count_nonzero((other > slack) & few, axis=1)
        exact = few & np.all((other <= tolerance * s[part] / 4.0) | (other > slack), axis=0)
        kept[:, part] = np.where((error[chosen] <= slack) & exact, error[chosen], np.nan)
    return ours, theirs, kept


def _atoms(values: FloatArray, slack: FloatArray, limit: int) -> tuple[list[FloatArray], NDArray[np.bool_]]:
    """The values that occur at each element, smallest first and inf where there are no more; and where that is all."""
    atoms: list[FloatArray] = []
    rest = values
    for _ in range(limit):
        atoms.append(rest.min(axis=0))
        rest = np.where(rest > atoms[-1] + slack, rest, np.inf)
        if np.isinf(rest).all():
            break
    return atoms, np.asarray(np.isinf(rest).all(axis=0))


def _distance(values: FloatArray, atoms: Sequence[FloatArray]) -> FloatArray:
    """Of each value from the nearest atom."""
    nearest = np.abs(values - atoms[0])
    for atom in atoms[1:]:
        np.minimum(nearest, np.abs(values - atom), out=nearest)
    return nearest


def _kept_load(kept: FloatArray, s: FloatArray, tolerance: float) -> float:
    """Norm and 99th percentile of kept values' errors as a share of the budget; nan where nothing is kept."""
    known = ~np.isnan(kept) & (s > 0.0)
    if not known.any():
        return math.nan
    error, unit = kept[known], np.broadcast_to(s, kept.shape)[known]
    norm = math.sqrt(float(np.sum(np.square(error / unit.max()))) / float(np.sum(np.square(unit / unit.max()))))
    return max(norm, float(np.quantile(error / unit, 0.99)) / _Q99_FACTOR) / tolerance


# ------------------------------------------------------------------------------------------------ the tests


def _tests(standard: _Standard, shape: Sequence[int], rng: np.random.Generator) -> dict[str, float]:
    """All tests on standardised values, by name; 1 throughout where nothing is random."""
    u, k, signs = standard.u, standard.k, standard.signs
    gram = (u @ u.T).astype(np.float64)
    squares = np.square(u)
    totals = (u @ signs).astype(np.float64)
    p_values = {
        "element": _element_p(standard),
        "total": _two_sided(totals[:k], totals[k:]),
        "spread": _spread_p(totals, k),
        "mean": _witness(gram, k),
        "variance": _witness((squares @ squares.T).astype(np.float64), k),
        "distribution": _witness(_characteristic_kernel(u, rng), k),
        "pairs": _witness(np.square(gram), k),
        "calls": _serial_p(gram[:k, :k], rng),
        "shifts": _shifts_p(standard, rng),
    }
    for axis in _axes(shape):
        p_values[f"neighbours {axis}"] = _neighbours_p(standard, math.prod(shape[axis + 1 :]))
    return p_values


def _spread_p(totals: FloatArray, k: int) -> float:
    """Whether the calls' totals lie nearer to or farther from their common median: a component that elements share."""
    away = np.abs(totals - np.median(totals))
    return _two_sided(away[:k], away[k:])


def _determinism_p(x: FloatArray, y: FloatArray, slack: FloatArray) -> float:
    """Whether the candidate's calls are equal to its first more often than the reference's are (Fisher's test)."""
    ours, theirs = (int(np.count_nonzero(np.all(np.abs(r - x[0]) <= slack, axis=1))) for r in (x[1:], y))
    return _fisher_p(ours, len(x) - 1, theirs, len(y))


def _element_p(standard: _Standard) -> float:
    """The element whose mean differs most: its values ranked, and how many lie above the middle of their range.

    Two-sided Mann-Whitney and Fisher's tests, times the number of random elements: it does not matter which is taken.
    """
    u, k = standard.u, standard.k
    at = int(np.argmax(np.abs(u[:k].mean(axis=0) - u[k:].mean(axis=0))))
    values = u[:, at].astype(np.float64)
    high = values > (values.min() + values.max()) / 2.0
    m, n, ours, theirs = k, len(u) - k, int(high[:k].sum()), int(high[k:].sum())
    fisher = 2.0 * min(_fisher_p(ours, m, theirs, n), _fisher_p(theirs, n, ours, m))
    p = min(_two_sided(values[:k], values[k:]), fisher)
    return min(1.0, 2.0 * max(1, int(standard.random.sum())) * p)


def _characteristic_kernel(u: Float32Array, rng: np.random.Generator) -> FloatArray:
    """Calls compared by the empirical characteristic function of their standardised values at four frequencies.

    T. W. Epps and K. J. Singleton, "An omnibus test for the two-sample problem using the empirical characteristic
    function", J. Statist. Comput. Simul. 26, 1986. Smooth in the values, unlike bins or ranks, so that two sides that
    round differently do not seem to differ where many values are equal.
    """
    columns = rng.choice(u.shape[1], min(u.shape[1], _SAMPLED_ELEMENTS), replace=False)
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


def _equality_kernel(x: FloatArray, y: FloatArray, rng: np.random.Generator) -> FloatArray:
    """How many elements of two calls hold the same value, up to random hashing of values to signs."""
    values = (np.concatenate([x, y]) + 0.0).view(np.uint64)  # no negative zeros
    kernel = np.zeros((len(values), len(values)))
    for _ in range(_HASHES):
        odd, offset = rng.integers(0, 1 << 63, 2, dtype=np.uint64)
        mixed = (values ^ offset) * (odd | np.uint64(1))
        mixed = (mixed ^ (mixed >> np.uint64(32))) * (odd | np.uint64(1))
        signs = np.where(mixed >> np.uint64(63), np.float32(1.0), np.float32(-1.0))
        kernel += signs @ signs.T
    return kernel


def _serial_p(gram: FloatArray, rng: np.random.Generator) -> float:
    """Whether calls resemble the call before. Null: the candidate's calls are exchangeable in time.

    The statistic is the mean rank of the inner products of successive calls among those of all pairs; its mean and
    variance are those over random orders of the calls (A. Wald and J. Wolfowitz, "An exact test for randomness in the
    non-parametric case based on serial correlation", Ann. Math. Statist. 14, 1943), its tail is taken as normal.
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


def _shifts_p(standard: _Standard, rng: np.random.Generator) -> float:
    """Whether a call is the one before, shifted by any number of elements, as where a counter serves as randomness.

    The largest cross-correlation over all shifts, of disjoint pairs of successive calls, ranked: once as they are, once
    with the signs of the elements' means, since it is the mask of dropout that is shifted and not what it falls on.
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
    """Of each even row with the row after it, over all cyclic shifts."""
    products = np.fft.irfft(spectra[0::2] * spectra[1::2].conj(), elements, axis=1)
    return np.asarray(np.abs(products).max(axis=1), dtype=np.float64)


def _mid_ranks(values: FloatArray) -> FloatArray:
    """Ranks from 0, equal values sharing their mean rank."""
    ordered = np.sort(values)
    return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") - 1) / 2.0


def _repeats_p(standard: _Standard, rng: np.random.Generator) -> float:
    """Whether two of the candidate's calls agree on more elements than any two independent ones would.

    With N the number of elements in which two calls differ, of mean mu and variance v over the reference's pairs,
    P(N <= mu - t) <= exp(-t^2 / (2 max(v, mu))) (A. Maurer, "A bound on the deviation probability for sums of
    non-negative random variables", JIPAM 4, 2003: exact for independent elements, where it holds with mu in the
    denominator; v stands in for dependent ones), times the number of pairs.
    """
    u, k = standard.u, standard.k
    columns = np.flatnonzero(standard.random)
    if columns.size > _SAMPLED_ELEMENTS:
        columns = np.sort(rng.choice(columns, _SAMPLED_ELEMENTS, replace=False))
    sampled = np.ascontiguousarray(u[:, columns])
    ours, theirs = _differences(sampled[:k]), _differences(sampled[k:])
    mean, variance = float(theirs.mean()), float(theirs.var())
    short = max(0.0, mean - float(ours.min()))
    return min(1.0, len(ours) * math.exp(-short * short / (2.0 * max(variance, mean, 1e-9))))


def _differences(u: Float32Array) -> NDArray[np.int64]:
    """Number of elements in which two calls differ, for all pairs."""
    return np.concatenate([np.count_nonzero(np.abs(u[i + 1 :] - u[i]) > 1e-3, axis=1) for i in range(len(u) - 1)])


def _axes(shape: Sequence[int]) -> list[int]:
    """Dimensions along which neighbours are compared: all of them, or the first and the last two of many."""
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    return axes if len(axes) <= 3 else [axes[0], *axes[-2:]]


def _neighbours_p(standard: _Standard, step: int) -> float:
    """Whether products of elements that lie ``step`` apart in memory are distributed like the reference's.

    That is one apart along the dimension with this stride (and, seldom, from the end of a row to the next one's start).
    Their sums are ranked, plain and with the signs of the elements' means (dropout makes elements deviate from zero,
    whichever side they are on), and so is the witness of single products.
    """
    u, k, signs = standard.u, standard.k, standard.signs
    plain, signed, kernel = np.zeros(len(u)), np.zeros(len(u)), np.zeros((len(u), len(u)))
    for start in range(0, u.shape[1] - step, _CHUNK):
        end = min(start + _CHUNK, u.shape[1] - step)
        products = u[:, start:end] * u[:, start + step : end + step]
        plain += products.sum(axis=1)
        signed += products @ (signs[start:end] * signs[start + step : end + step])
        kernel += products @ products.T
    p = min(_two_sided(plain[:k], plain[k:]), _two_sided(signed[:k], signed[k:]), _witness(kernel, k))
    return min(1.0, 3.0 * p)
