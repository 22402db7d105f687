"""Triton kernels as people write them for GPUs, right ones, judged where there is none: in the interpreter."""

from __future__ import annotations

import pytest
from evaluator_gpu_kernels import (
    PROFILED,
    assert_few_are_unchecked,
    assert_has_a_static_profile,
    assert_passes_or_is_not_checkable,
    of,
)

pytestmark = pytest.mark.untimed
NAMES = [kernel.name for kernel in of("triton")]


@pytest.mark.matrix
@pytest.mark.parametrize("name", NAMES)
def test_a_right_kernel_passes_or_is_not_checkable(verdicts, name):
    assert_passes_or_is_not_checkable(verdicts[name])


def test_few_kernels_end_unchecked(verdicts, taken):
    assert_few_are_unchecked(verdicts, taken("name"), "triton")


@pytest.mark.matrix
@pytest.mark.parametrize("name", [name for name in NAMES if name in PROFILED])
def test_a_kernel_has_a_static_profile(verdicts, name):
    assert_has_a_static_profile(verdicts[name])
