"""One call's outputs against what is known of them: by trials of the test's own making, without a worker."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kernelwright.evaluator.accuracy.budget import Reduction
from kernelwright.evaluator.accuracy.judging import Judge
from kernelwright.evaluator.accuracy.trials import Trial, Truth
from kernelwright.evaluator.wire.claims import OutputClaim
from kernelwright.evaluator.wire.tensors import TensorSpec
from kernelwright.records import Status

VALUES = np.array([[3.0, 7.0, 7.0, 1.0], [2.0, 5.0, 4.0, 4.0]])
LARGEST = np.array([1, 1])


def judged(numbers: np.ndarray, truth: Truth, dtype: str):
    spec = TensorSpec("", dtype, numbers.shape, (1,))
    trial = Trial("normal", 0, np.zeros(0, dtype=np.uint8), (Reduction(4),), (truth,))
    claim = OutputClaim(0, dtype, numbers.shape, (1,), np.ascontiguousarray(numbers).view(np.uint8))
    return Judge().trial(trial, SimpleNamespace(outputs=(spec,)), (claim,), 1.0)[0]


@pytest.mark.parametrize(
    ("chosen", "status"),
    [
        ([1, 1], None),
        ([2, 1], None),  # the other one of two equal values
        ([0, 1], Status.INCORRECT_NUMERICAL),
        ([1, 4], Status.INCORRECT_NUMERICAL),
    ],
)
def test_an_index_is_right_where_it_points_at_a_value_as_good(chosen, status):
    rule = (VALUES, np.full(VALUES.shape, 1e-6), -1, False)
    truth = Truth("exact", LARGEST, LARGEST, np.zeros(2), rule)
    assert judged(np.array(chosen), truth, "int64").status is status


def test_an_integer_that_is_no_index_is_right_where_it_is_the_references():
    truth = Truth("exact", LARGEST, LARGEST, np.zeros(2), None)
    assert judged(np.array([1, 1]), truth, "int64").status is None
    assert judged(np.array([2, 1]), truth, "int64").status is Status.INCORRECT_NUMERICAL
