"""The judgement on numpy arrays: decoding, non-finite values, integers, indices, reasons, the probe's gates."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kernelwright.errors import KernelwrightError
from kernelwright.evaluator.accuracy import arrays, budget
from kernelwright.evaluator.accuracy.budget import Reduction

RNG = np.random.default_rng(5)
U = 2.0**-24


def judged(candidate, ref64, s=None, n=1, **options):
    s = np.full(np.shape(ref64), 1e-6) if s is None else s
    return budget.judge_output(candidate, ref64, s, [Reduction(n, 10**6)], **options)


def test_a_signalling_nan_is_a_wrong_value_and_nothing_worse():
    candidate = np.ones(8, dtype=np.float32)
    candidate.view(np.uint32)[3] = 0x7FA00000
    assert not judged(candidate, np.ones(8)).passed


# ---------------------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
)
def test_decode_reads_what_torch_wrote(dtype):
    tensor = (torch.randn(3, 5) * 50).to(getattr(torch, dtype))
    raw = bytes(tensor.view(torch.uint8).numpy())
    back = arrays.decode(raw, dtype, (3, 5))
    wanted = tensor.float() if dtype == "bfloat16" else tensor
    np.testing.assert_array_equal(back, wanted.numpy())
    assert back.dtype == wanted.numpy().dtype


def test_decode_follows_strides_and_copies():
    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4).t()
    buffer = bytearray(tensor.t().contiguous().view(torch.uint8).numpy())
    back = arrays.decode(buffer, "float32", (4, 3), tensor.stride())
    np.testing.assert_array_equal(back, tensor.numpy())
    buffer[:] = bytes(len(buffer))
    np.testing.assert_array_equal(back, tensor.numpy())
    assert back.flags.c_contiguous
    half = tensor.bfloat16()
    raw = bytes(half.t().contiguous().view(torch.uint8).numpy())
    np.testing.assert_array_equal(arrays.decode(raw, "bfloat16", (4, 3), half.stride()), half.float().numpy())


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((5,), None), ((2, 2), (4, 1)), ((-1,), None), ((4,), (-1,)), ((2, 2), (1,)), ((2,), (2**62,)), ((1,) * 40, None)],
)
def test_decode_refuses_what_the_buffer_cannot_hold(shape, strides):
    with pytest.raises(arrays.DecodeError):
        arrays.decode(bytes(16), "float32", shape, strides)


def test_decode_refuses_unknown_dtypes():
    with pytest.raises(KernelwrightError, match="not supported"):
        arrays.decode(bytes(16), "complex64", (2,))


# ------------------------------------------------------------------------------------------------------- scale


def test_scale_adds_the_three_parts():
    ref64 = np.array([[3.0, 4.0], [0.0, 0.0]])
    mca, rows = np.array([[3e-6, 0.0], [0.0, 0.0]]), np.array([[4e-6], [0.0]])
    s = arrays.scale(mca, rows, ref64, "float32")
    floor = U * math.sqrt(25 / 4) / 16
    np.testing.assert_allclose(s, [[math.hypot(5e-6, floor), math.hypot(4e-6, floor)], [floor, floor]], rtol=1e-12)


def test_scale_allows_flushed_subnormals_and_nothing_above():
    zeros = np.zeros(8)
    s = arrays.scale(zeros, zeros, zeros, "float32")
    assert judged(np.full(8, 2.0**-127), zeros, s).passed
    assert not judged(np.full(8, 2.0**-120), zeros, s).passed


def test_scale_ignores_non_finite_elements():
    ref64 = np.array([1.0, np.inf, np.nan])
    s = arrays.scale(np.zeros(3), np.zeros(1), ref64, "float32")
    np.testing.assert_allclose(s, U / 16)


def test_unit_roundoff_takes_the_coarsest_precision_that_is_allowed():
    assert arrays.unit_roundoff("float32") == U == torch.finfo(torch.float32).eps / 2
    assert arrays.unit_roundoff("bfloat16") == torch.finfo(torch.bfloat16).eps / 2
    assert arrays.unit_roundoff("float16") == torch.finfo(torch.float16).eps / 2
    assert arrays.unit_roundoff("float32", ("tf32",)) == 2.0**-11
    with pytest.raises(arrays.DecodeError, match="unit roundoff"):
        arrays.unit_roundoff("int64")


def test_ill_conditioned_where_rounding_spoils_the_answer():
    y = RNG.standard_normal(100)
    assert not arrays.ill_conditioned(np.full(100, 2.0**-12), y)
    assert arrays.ill_conditioned(np.full(100, 2.0**-10), y)
    assert not arrays.ill_conditioned(np.full(100, 2.0**-8), y, "bfloat16")
    assert not arrays.ill_conditioned(np.zeros(0), np.zeros(0))


# ------------------------------------------------------------------------------------------------------ judging


def test_tolerance_grows_with_the_reduction_and_the_problem():
    assert budget.tolerance([]) == 4 + 1 / 16
    assert budget.tolerance([Reduction(2**20)]) == 68.0  # eight lanes decide
    assert budget.tolerance([Reduction(2**20)], 2.0) == 136.0
    assert budget.tolerance([Reduction(4096)]) == math.hypot(4, 16)  # one chain does
    assert budget.tolerance([Reduction(4096, kind="product")]) < budget.tolerance([Reduction(4096)])
    own = budget.tolerance([Reduction(4096, kind="norm")], data="own")
    assert own == budget.tolerance([Reduction(4096, kind="product")], data="own") == pytest.approx(math.hypot(4, 19.2))
    assert budget.tolerance([Reduction(65536)], data="other") == 4 + 2048
    assert budget.tolerance([Reduction(512)], data="equal") == 132.0
    assert budget.tolerance([Reduction(512)], data="far") == 144.0
    assert budget.tolerance([], data="other") == 4.0


def test_longer_chains_than_are_allowed_are_told_what_to_do():
    error = np.full(1000, 55.0)  # of one chain of 65,536 additions: 64

    def of_chain(terms, times=1):
        return budget.judge_output(times * error, np.zeros(1000), np.ones(1000), [Reduction(terms, 1000)])

    assert not of_chain(65_536).passed
    assert "one chain of 65,536 float additions is as far off: use several partial sums" in of_chain(65_536).reason
    assert "chain" not in of_chain(65_536, times=4).reason
    assert not of_chain(16_384).passed
    assert "chain" not in of_chain(16_384).reason


def test_a_chain_of_squares_that_loses_small_terms_is_told_what_to_do():
    """One sum of 460,800 squares in one chain is 1,340 error scales off: its partial sum swallows small terms."""
    squares = np.square(RNG.standard_normal(460_800)).astype(np.float32)
    exact = squares.astype(np.float64).sum()
    scale = np.array([math.sqrt(2.0) * 2.0**-24 * exact])
    chain = np.cumsum(squares, dtype=np.float32)[-1:]  # numpy's running sum is one chain
    report = budget.judge_output(chain, np.array([exact]), scale, [Reduction(460_800)])
    assert not report.passed
    assert "one chain of 460,800 float additions is as far off: use several partial sums" in report.reason
    few = budget.judge_output(np.array([2.0 * exact]), np.array([exact]), scale, [Reduction(460_800)])
    assert "chain" not in few.reason


@pytest.mark.parametrize(("sums", "passes"), [(1, True), (1000, False)])
def test_outputs_that_share_one_sum_are_one_error(sums, passes):
    """A softmax of one row of 1,000 numbers: its sum is 20 error scales off once in some hundred draws."""
    ref = np.zeros(1000)
    report = budget.judge_output(np.full(1000, 20.0), ref, np.ones(1000), [Reduction(1000, sums)])
    assert report.passed == passes


def test_each_of_the_three_limits_fails_alone():
    ref, s = np.zeros(10_000), np.ones(10_000)
    spread = np.full(10_000, 4.2)
    assert judged(spread, ref, s).norm_ratio == pytest.approx(4.2)
    assert not judged(spread, ref, s).passed
    some = np.zeros(10_000)
    some[:200] = 25.0  # 2%: the norm is 3.5
    assert "many" in judged(some, ref, s).reason
    one = np.zeros(10_000)
    one[17] = 170.0
    assert "some" in judged(one, ref, s).reason
    one[17] = 160.0
    assert judged(one, ref, s).passed


def test_off_normal_tails_may_be_longer():
    one = np.zeros(10_000)
    one[17] = 400.0
    options = {"reductions": [], "data": "other"}
    assert budget.judge_output(one, np.zeros(10_000), np.ones(10_000), **options).passed
    one[17] = 700.0
    assert not budget.judge_output(one, np.zeros(10_000), np.ones(10_000), **options).passed


@pytest.mark.parametrize(("times", "passes"), [(130.0, True), (250.0, False)])
def test_off_normal_many_elements_of_small_scale_may_be_far_off(times, passes):
    """A GELU of wide data with an erf that is two units off: 99% of elements are within 98 error scales."""
    s = np.ones(10_000)
    s[:1000] = 1e-3
    error = np.where(np.arange(10_000) < 200, times * s, 0.0)
    found = budget.judge_output(error, np.zeros(10_000), s, [], data="other")
    assert found.passed is passes
    assert not budget.judge_output(error, np.zeros(10_000), s, []).passed


def test_the_problems_own_factor_widens_the_budget():
    ref, s = np.zeros(100), np.ones(100)
    assert not judged(np.full(100, 6.0), ref, s).passed
    report = judged(np.full(100, 6.0), ref, s, tolerance_scale=2.0)
    assert report.passed
    assert report.load == pytest.approx(6.0 / report.budget)


def test_reasons_name_the_budget_and_no_data():
    ref = np.array([123456.789, 2.0, 3.0])
    reason = judged(ref + 987.654, ref).reason
    assert reason.endswith("times the error budget")
    assert not any(text in reason for text in ("123", "987", "[", "index", "1e-06"))


def test_non_finite_values_must_match_in_kind():
    ref = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert judged(ref.copy(), ref).passed
    for i, wrong in ((0, 0.0), (0, np.inf), (1, -np.inf), (1, 1e30), (2, np.nan), (3, np.nan), (3, np.inf)):
        bad = ref.copy()
        bad[i] = wrong
        report = judged(bad, ref)
        assert not report.passed, (i, wrong)
        assert "non-finite" in report.reason


def test_nan_is_no_wildcard():
    ref = RNG.standard_normal(1000)
    bad = ref.copy()
    bad[::2] = np.nan
    assert not judged(bad, ref).passed


def test_overflow_of_the_dtype_is_infinity():
    ref = np.array([1e39, -1e39, 1.0])
    assert judged(np.array([np.inf, -np.inf, 1.0]), ref).passed
    assert not judged(np.array([3e38, -np.inf, 1.0]), ref).passed
    assert judged(np.array([np.inf]), np.array([70000.0]), dtype="float16").passed


def test_where_only_the_reference_overflowed_the_right_value_is_as_good():
    ref64, low = np.array([2.0, 3.0]), np.array([np.nan, 3.0])
    assert judged(np.array([np.nan, 3.0]), ref64, ref_low=low).passed
    assert judged(np.array([2.0, 3.0]), ref64, ref_low=low).passed
    assert not judged(np.array([2.5, 3.0]), ref64, ref_low=low).passed
    assert not judged(np.array([np.inf, 3.0]), ref64, ref_low=low).passed


def test_kernelbench_allclose_is_reported_beside():
    ref = np.full(4, 1.0)
    close = judged(ref + 1.5e-4, ref)
    assert close.kernelbench_allclose
    assert not close.passed
    assert not judged(ref + 3e-4, ref).kernelbench_allclose
    assert judged(ref + 1e-2, ref, dtype="bfloat16").kernelbench_allclose


def test_empty_outputs_pass():
    assert judged(np.zeros((0, 3)), np.zeros((0, 3))).passed


# ------------------------------------------------------------------------------------------ integers and indices


def test_integers_and_booleans_are_exact_but_for_their_slack():
    ref = np.array([1, 2, 3])
    assert budget.judge_exact(ref.copy(), ref).passed
    assert not budget.judge_exact(np.array([1, 2, 4]), ref).passed
    assert budget.judge_exact(np.array([1, 2, 4]), ref, np.array([0.0, 0.0, 1.0])).passed
    assert not budget.judge_exact(np.array([1, 3, 4]), ref, np.array([0.0, 0.0, 1.0])).passed
    assert not budget.judge_exact(np.array([True, False]), np.array([True, True])).passed


def test_an_index_is_judged_by_what_it_points_at():
    values = np.array([[1.0, 5.0, 5.0 - 1e-7, 0.0], [3.0, 2.0, 1.0, 0.0]])
    s = np.full(values.shape, 1e-7)
    options = {"dim": 1, "distinct": False}
    wanted = np.array([1, 0])
    assert budget.judge_index(wanted, wanted, values, s, [], **options).passed
    assert budget.judge_index(np.array([2, 0]), wanted, values, s, [], **options).passed
    assert not budget.judge_index(np.array([0, 0]), wanted, values, s, [], **options).passed
    assert not budget.judge_index(np.array([1, 1]), wanted, values, s, [], **options).passed
    assert "range" in budget.judge_index(np.array([1, 4]), wanted, values, s, [], **options).reason
    assert "range" in budget.judge_index(np.array([1, -4]), wanted, values, s, [], **options).reason


def test_sorted_indices_must_not_repeat():
    values, s = np.array([5.0, 5.0, 1.0]), np.full(3, 1e-7)
    wanted, options = np.array([0, 1, 2]), {"dim": 0, "distinct": True}
    assert budget.judge_index(np.array([1, 0, 2]), wanted, values, s, [], **options).passed
    assert "repeat" in budget.judge_index(np.array([0, 0, 2]), wanted, values, s, [], **options).reason


# -------------------------------------------------------------------------------------------------------- probe


def test_probe_reads_the_slope():
    delta, s = RNG.standard_normal(4000) * 1e-3, np.full(4000, 1e-6)
    for slope, passed in ((1.0, True), (0.95, True), (0.85, False), (0.5, False), (0.0, False)):
        report = budget.probe_beta(slope * delta, delta, s)
        assert report.beta == pytest.approx(slope)
        assert report.passed == passed
        assert report.decided


def test_probe_finds_one_bad_block():
    delta, s = RNG.standard_normal(16_000) * 1e-3, np.full(16_000, 1e-6)
    got = delta.copy()
    got[:1000] = 0.0  # half of one block: 0.94 overall
    report = budget.probe_beta(got, delta, s)
    assert report.beta > 0.9
    assert report.min_block < 0.6
    assert not report.passed


def test_probe_says_nothing_where_rounding_hides_the_answer():
    delta, s = np.array([1e-8]), np.array([1e-6])
    report = budget.probe_beta(np.array([0.0]), delta, s)
    assert report.passed
    assert not report.decided
    still = budget.probe_beta(np.zeros(50), np.zeros(50), np.full(50, 1e-6))
    assert still.passed
    assert not still.decided


def test_probe_cannot_be_silenced_by_nan():
    delta, s = RNG.standard_normal(4000) * 1e-3, np.full(4000, 1e-6)
    report = budget.probe_beta(np.full(4000, np.nan), delta, s)
    assert not report.passed


def test_an_error_norm_that_few_elements_decide_is_one_of_few_numbers_where_terms_are_equal():
    s = np.full(1000, 1e-9)
    assert arrays.deciding(s) == pytest.approx(1000)
    s[7] = 1e-6
    assert arrays.deciding(s) == pytest.approx(1.0, rel=1e-2)
    assert arrays.deciding(np.zeros(5)) == 5
    wrong = np.zeros(1000)
    wrong[7] = 10e-6  # ten times its scale, of a budget of four: beyond it, unless it is one draw alone
    assert not budget.judge_output(wrong, np.zeros(1000), s, [], data="other").passed
    assert budget.judge_output(wrong, np.zeros(1000), s, [], data="equal").passed
    assert not budget.judge_output(2 * wrong, np.zeros(1000), s, [], data="equal").passed
