"""Patterns of an archive's generators: what is drawn has the shape that was asked for, and stays inside its domain."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kernelwright.errors import UsageError
from kernelwright.evaluator.accuracy.generators import draw
from kernelwright.records import InputDomain, InputGenerator, InputPattern
from kernelwright.records.problems import PatternKind, archive_id

WIDE = InputDomain(fill="normal", low=-1e4, high=1e4)
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int8", "uint8", "bool")

patterns = st.builds(
    InputPattern,
    kind=st.sampled_from(get_args(PatternKind)),
    magnitude=st.floats(1e-6, 1e6) | st.floats(-1e6, -1e-6),
    count=st.integers(1, 40),
    place=st.sampled_from(("first", "last", "random")),
    axis=st.integers(-4, -1),
)
shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)
domains = st.tuples(st.floats(-200, 200), st.floats(0, 300)).map(
    lambda pair: InputDomain(fill="normal", low=pair[0], high=pair[0] + pair[1] + 1.0)
)


def rows(kind: str, shape=(40, 33), domain=WIDE, **fields) -> np.ndarray:
    return draw(InputPattern(kind=kind, **fields), shape, "float32", domain, np.random.default_rng(5))


@settings(max_examples=300, deadline=None)
@given(pattern=patterns, shape=shapes, dtype=st.sampled_from(DTYPES), domain=domains, seed=st.integers(0, 9))
def test_every_element_lies_in_its_domain(pattern, shape, dtype, domain, seed):
    if dtype in ("int8", "uint8"):
        limits = np.iinfo(dtype)
        assume(domain.high >= limits.min + 1 and domain.low <= limits.max - 1)
    values = draw(pattern, shape, dtype, domain, np.random.default_rng(seed))
    assert values.shape == shape
    if dtype == "bool":
        assert values.dtype == np.bool_
        return
    if dtype == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    slack = {"float16": 0.2, "bfloat16": 2.0, "float32": 1e-4}.get(dtype, 0.0)  # bounds are rounded to the dtype
    assert np.all(np.isfinite(values.astype(np.float64)))
    assert np.all(values.astype(np.float64) >= domain.low - slack)
    assert np.all(values.astype(np.float64) <= domain.high + slack)


def test_equal_maxima_hold_a_rows_largest_number_that_often():
    x = rows("equal_maxima", count=2, magnitude=3.0)
    assert set(np.sum(x == x.max(axis=1, keepdims=True), axis=1)) == {3}


@pytest.mark.parametrize(("place", "steps"), [("last", 1), ("first", -1), ("random", 1)])
def test_sorted_rows(place, steps):
    assert np.all(np.diff(rows("sorted", place=place)[:, ::steps], axis=1) >= 0)


def test_an_axis_turns_rows_into_columns():
    assert np.all(np.diff(rows("sorted", axis=-2), axis=0) >= 0)
    assert not np.all(np.diff(rows("sorted", axis=-2), axis=1) >= 0)


@pytest.mark.parametrize(("place", "columns"), [("first", {0, 1}), ("last", {31, 32})])
def test_sparse_rows_and_their_place(place, columns):
    found = np.argwhere(rows("sparse", count=2, place=place))
    assert set(found[:, 1]) == columns
    assert set(np.sum(rows("sparse", count=2) != 0, axis=1)) == {2}


def test_outliers_are_so_many_times_as_large():
    x = rows("outliers", magnitude=1000.0, place="last")
    assert np.median(np.abs(x[:, -1])) > 100 * np.median(np.abs(x[:, :-1]))


def test_ties_have_few_different_numbers():
    assert len(np.unique(rows("ties", count=3))) <= 3
    assert len(np.unique(rows("ties", count=16, magnitude=2.0))) > 8


def test_one_sided_offset_alternating_constant_and_bounds():
    assert np.all(rows("one_sided", magnitude=-50.0) <= 0)
    assert np.all(rows("one_sided", magnitude=50.0) >= 0)
    assert abs(rows("offset", magnitude=500.0).mean() - 500.0) < 1.0
    assert np.all(rows("alternating", magnitude=100.0)[:, 0::2] > 90)
    assert np.all(rows("alternating", magnitude=100.0)[:, 1::2] < -90)
    assert np.all(rows("constant", magnitude=7.0) == 7.0)
    assert set(np.unique(rows("bounds"))) == {-1e4, 1e4}
    assert set(np.unique(rows("bounds", domain=InputDomain(fill="normal"), magnitude=8.0))) == {-8.0, 8.0}


def test_signed_zeros_have_both_signs():
    x = rows("signed_zeros")
    zeros = np.signbit(x[x == 0])
    assert 0.3 < len(zeros) / x.size < 0.7
    assert set(zeros) == {True, False}


def test_uneven_rows_have_sizes_of_their_own():
    sizes = np.sqrt(np.mean(np.square(rows("uneven_rows", magnitude=1024.0, count=33)), axis=1))
    assert sizes.max() / sizes.min() > 50


def test_scaled_down():
    assert np.abs(rows("scaled", magnitude=1e-3)).max() < 0.01


def test_masks_are_all_on_all_off_or_sparse():
    def mask(kind: str, **fields) -> np.ndarray:
        pattern = InputPattern(kind=kind, **fields)
        return draw(pattern, (20, 30), "bool", InputDomain(fill="uniform", low=0, high=1), np.random.default_rng(1))

    assert not mask("constant", magnitude=0.0).any()
    assert mask("constant", magnitude=1.0).all()
    assert set(np.sum(mask("sparse", magnitude=100.0), axis=1)) == {1}


def test_what_only_the_problem_can_make_is_not_drawn():
    with pytest.raises(UsageError, match="get_inputs"):
        draw(InputPattern(kind="normal"), (3,), "float32", InputDomain(), np.random.default_rng(0))
    with pytest.raises(UsageError, match="finite bounds"):
        draw(InputPattern(kind="normal"), (3,), "int32", InputDomain(fill="uniform"), np.random.default_rng(0))


@pytest.mark.parametrize(
    "fields",
    [{"kind": "code"}, {"magnitude": math.inf}, {"magnitude": 0.0}, {"count": 0}, {"axis": 0}, {"script": "import os"}],
)
def test_a_pattern_is_data_within_bounds(fields):
    with pytest.raises(ValidationError):
        InputPattern(**{"kind": "normal", **fields})


def test_generators_and_archives_are_named_by_content():
    first = InputGenerator(inputs={"x": InputPattern(kind="ties", count=2), "y": InputPattern(kind="sparse")})
    turned = InputGenerator(inputs={"y": InputPattern(kind="sparse"), "x": InputPattern(kind="ties", count=2)})
    other = InputGenerator(inputs={"x": InputPattern(kind="ties", count=3)})
    assert first.id == turned.id != other.id
    assert first.describe() == "x: ties, count 2; y: sparse"
    assert archive_id([first, other]) == archive_id([other, turned, first])
    assert archive_id([first]) != archive_id([other])
    assert archive_id([]) == ""
    with pytest.raises(ValidationError):
        InputGenerator(inputs={})
