"""Is a random output drawn from the reference's distribution? Dropout, random noise, sampling: no single call is right.

Runs in the referee on numpy arrays only. K calls of the candidate on one input are compared with K draws of the
reference on the same input. Unless said otherwise the null hypothesis of a test is that all these calls are
exchangeable: the candidate's are independent draws of the same random vector as the reference's. Elements of one output
may depend on each other (a linear layer after dropout correlates them all). So no test sums z-scores over elements into
a chi-square, which would need independent elements.

Instead every call is reduced to one number, and the numbers of the candidate's calls are ranked against those of the
reference's (Mann and Whitney, "On a test of whether one of two random variables is stochastically larger than the
other", Ann. Math. Statist. 18, 1947). That test is exact for any output. Numbers are of two kinds:

- fixed ones, such as the correlation of neighbouring elements within a call;
- witnesses, for differences that are not known beforehand, such as which elements have another mean. Half of the calls
  show in which direction the two sides differ, and the calls of the other half are ranked along it. Then the halves
  change roles (Kübler et al., "A witness two-sample test", AISTATS 2022).

Elements are standardised by mean and deviation over both sides' calls, which favours neither. If the reference takes
few values at an element (dropout: zero and one more), the candidate's must be among them to within the error budget.
The p-values are combined by Bonferroni's inequality. They are for the record: reasons contain no p-value or output.

The tests do not find dependence that is weak or between far elements only; a generator that starts from the same seed
in every process, or repeats after more calls than were made; or reduced precision at elements with many values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelwright.errors import UsageError
from kernelwright.evaluator.accuracy.permutations import (
    CHUNK,
    SAMPLED_ELEMENTS,
    Array,
    FloatArray,
    Standard,
    axes,
    characteristic_kernel,
    determinism_p,
    element_p,
    equality_kernel,
    fisher_p,
    folds,
    neighbours_p,
    rank_sum_p,
    repeats_p,
    serial_p,
    shifts_p,
    spread_p,
    two_sided,
    witness,
)

MIN_CALLS = 32  # 16 calls against 16 can reach p = 3e-9 in a witness test
_MAX_ATOMS = 4  # an element with more values in half of the reference's calls counts as continuous
_MAX_FACTOR = 40.0  # as in the error budget: largest and 99th percentile of |e| / s over the budget
_Q99_FACTOR = 6.0
_RANDOM_FACTOR = 64.0  # a spread of fewer budgets than this is rounding, not randomness
_KEPT_CALLS = 4  # calls of each half whose kept values are compared with the budget
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

    p_values: by name of the test. Each is compared with ``alpha`` over their number. load: the error of kept values as
    a share of the budget (see :func:`judge_random`); nan if no element has few values.
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
        scale: the error scale ``s`` of honest rounding, of that shape. If an element can be zero, pass the scale of its
            other values (the largest over a few draws). None if values must be equal (integers).
        tolerance: the budget ``T`` of ``accuracy.budget.tolerance``. Kept values must lie within
            40 T s of one of the reference's, and as a whole within T and 6 T like any other output. Randomness that
            spreads an element by less than 64 T s cannot be told from rounding.
        alpha: the largest probability that an honest candidate fails.
        rng: chooses the sampled elements and orders; by default it is seeded by the operating system.

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
        "determinism": determinism_p(x, y, _MAX_FACTOR * tolerance * s),
        "values": values.p,
        "repeats": repeats_p(standard, rng),
    }
    _dither(standard, rng)
    p_values |= _tests(standard, np.shape(candidate[0]), rng)
    if scale is None:
        p_values["frequencies"] = witness(equality_kernel(x, y, rng), len(x))
    reason = _verdict(p_values, values.load, alpha)
    return RandomReport(not reason, reason, p_values, values.load)


def _verdict(p_values: Mapping[str, float], load: float, alpha: float) -> str:
    """The reason of a failure: wrong kept values, or the smallest p-value if it is too small. Empty if all passed."""
    if load > 1.0:
        return "values that are kept are wrong by more than the error budget"
    name = min(p_values, key=lambda name: p_values[name])
    if p_values[name] > alpha / len(p_values):
        return ""
    return _REASONS.get(name, _NEIGHBOURS_REASON)


# ----------------------------------------------------------------------------------------------- preparation


def _finite(x: Array, y: Array) -> tuple[FloatArray, FloatArray]:
    """Both sides as (calls, elements) of float64. Nan and infinities become three numbers that no finite value has."""
    rows = [values.reshape(len(values), -1).astype(np.float64) for values in (x, y)]
    if all(r.min() > -_LARGEST and r.max() < _LARGEST for r in rows):  # false where there is a nan
        return rows[0], rows[1]
    largest = max(float(np.max(np.abs(r), where=np.isfinite(r), initial=1.0)) for r in rows)
    bound = min(largest, _LARGEST)
    coded = [np.nan_to_num(r, nan=8.0 * bound, posinf=4.0 * bound, neginf=-4.0 * bound) for r in rows]
    coded = [np.where(np.isfinite(r), np.clip(c, -bound, bound), c) for r, c in zip(rows, coded, strict=True)]
    return coded[0], coded[1]


def _standardise(x: FloatArray, y: FloatArray, rounding: FloatArray) -> Standard:
    """Standardise both sides. Elements that spread by ``rounding`` or less become 0."""
    calls, elements = len(x) + len(y), x.shape[1]
    u, signs = np.empty((calls, elements), dtype=np.float32), np.empty(elements, dtype=np.float32)
    random = np.empty(elements, dtype=np.bool_)
    for start in range(0, elements, CHUNK):
        part = slice(start, start + CHUNK)
        block = np.concatenate([x[:, part], y[:, part]])
        mean = block.mean(axis=0)
        block -= mean
        spread = np.sqrt(np.einsum("ij,ij->j", block, block) / calls)
        random[part] = spread > rounding[part]
        block *= np.where(random[part], 1.0 / np.where(random[part], spread, 1.0), 0.0)
        u[:, part], signs[part] = block, np.sign(mean)
    return Standard(u, len(x), signs, random)


def _dither(standard: Standard, rng: np.random.Generator) -> None:
    """Add noise to every call, so that rounding alone cannot decide the ranks of calls that hardly differ.

    For example, a shuffle has the same total in every call, and the candidate's total differs by its rounding.
    """
    noise = np.empty(standard.u.shape[1], dtype=np.float32)
    weight = np.where(standard.random, np.float32(_DITHER), np.float32(0.0))
    for call in standard.u:
        rng.random(dtype=np.float32, out=noise)
        noise -= np.float32(0.5)
        call += noise * weight


# -------------------------------------------------------------------------------------------- kept values


class _Values(NamedTuple):
    """p: p-value of values that the reference lacks. load: error of the kept values as a share of the budget."""

    p: float
    load: float


def _compare_values(x: FloatArray, y: FloatArray, s: FloatArray, tolerance: float, rng: np.random.Generator) -> _Values:
    """Test elements with few values. Half of the reference's calls list them, the other half shows how many are missed.

    Null: exchangeable calls. Each half has two tests: the number of unknown values in a call (ranked), and the number
    of calls with any unknown value (Fisher's test).
    """
    if not s.any() and x.shape[1] > SAMPLED_ELEMENTS:
        columns = rng.choice(x.shape[1], SAMPLED_ELEMENTS, replace=False)
        x, y, s = x[:, columns], y[:, columns], s[columns]
    p, load = 1.0, math.nan
    for teach, rank in folds(min(len(x), len(y))):
        chosen = rng.choice(len(x[rank]), _KEPT_CALLS, replace=False)
        ours, theirs, kept = _unknown_values(x[rank], y[rank], y[teach], s, tolerance, chosen)
        calls = int(np.count_nonzero(ours)), len(ours), int(np.count_nonzero(theirs)), len(theirs)
        p = min(p, 4.0 * rank_sum_p(ours, theirs), 4.0 * fisher_p(*calls))
        load = float(np.fmax(load, _kept_load(kept, s, tolerance)))
    return _Values(min(p, 1.0), load)


def _unknown_values(
    x: FloatArray, y: FloatArray, known: FloatArray, s: FloatArray, tolerance: float, chosen: NDArray[np.integer[Any]]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The numbers of values not in ``known`` for each call of x and of y, and the errors of the ``chosen`` calls of x.

    An error is nan if its value is unknown, or if the reference's own values are not always the same.
    """
    ours, theirs, kept = np.zeros(len(x)), np.zeros(len(y)), np.full((len(chosen), x.shape[1]), np.nan)
    for start in range(0, x.shape[1], CHUNK):
        part = slice(start, start + CHUNK)
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
    """The values at each element, ascending and padded with inf; and a mask of the elements with no other values."""
    atoms: list[FloatArray] = []
    rest = values
    for _ in range(limit):
        atoms.append(rest.min(axis=0))
        rest = np.where(rest > atoms[-1] + slack, rest, np.inf)
        if np.isinf(rest).all():
            break
    return atoms, np.asarray(np.isinf(rest).all(axis=0))


def _distance(values: FloatArray, atoms: Sequence[FloatArray]) -> FloatArray:
    """The distance of each value from the nearest atom."""
    nearest = np.abs(values - atoms[0])
    for atom in atoms[1:]:
        np.minimum(nearest, np.abs(values - atom), out=nearest)
    return nearest


def _kept_load(kept: FloatArray, s: FloatArray, tolerance: float) -> float:
    """The errors of kept values, by norm and 99th percentile, as a share of the budget; nan if no value is kept."""
    known = ~np.isnan(kept) & (s > 0.0)
    if not known.any():
        return math.nan
    error, unit = kept[known], np.broadcast_to(s, kept.shape)[known]
    norm = math.sqrt(float(np.sum(np.square(error / unit.max()))) / float(np.sum(np.square(unit / unit.max()))))
    return max(norm, float(np.quantile(error / unit, 0.99)) / _Q99_FACTOR) / tolerance


# ------------------------------------------------------------------------------------------------ the tests


def _tests(standard: Standard, shape: Sequence[int], rng: np.random.Generator) -> dict[str, float]:
    """The p-values of all tests on standardised values, by name; all 1 if nothing is random."""
    u, k, signs = standard.u, standard.k, standard.signs
    gram = (u @ u.T).astype(np.float64)
    squares = np.square(u)
    totals = (u @ signs).astype(np.float64)
    p_values = {
        "element": element_p(standard),
        "total": two_sided(totals[:k], totals[k:]),
        "spread": spread_p(totals, k),
        "mean": witness(gram, k),
        "variance": witness((squares @ squares.T).astype(np.float64), k),
        "distribution": witness(characteristic_kernel(u, rng), k),
        "pairs": witness(np.square(gram), k),
        "calls": serial_p(gram[:k, :k], rng),
        "shifts": shifts_p(standard, rng),
    }
    for axis in axes(shape):
        p_values[f"neighbours {axis}"] = neighbours_p(standard, math.prod(shape[axis + 1 :]))
    return p_values
