"""Fresh inputs: domains, dtypes, the probe format."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kernelwright.errors import UsageError
from kernelwright.evaluator.accuracy import distributions
from kernelwright.records import InputDomain

EVERYWHERE = InputDomain(fill="normal")
DOMAINS = [
    EVERYWHERE,
    InputDomain(fill="uniform", low=0.0, high=1.0),
    InputDomain(fill="normal", low=0.1, high=0.2),
    InputDomain(fill="normal", low=0.0),
    InputDomain(fill="normal", low=1e-6),
    InputDomain(fill="normal", high=-2.0),
    InputDomain(fill="normal", low=-1e4, high=1e4),
    InputDomain(fill="uniform", low=-0.25, high=0.5),
    InputDomain(fill="normal", low=3.0, high=3.0),
]
SHAPE = (64, 96)


def draw(name, domain=EVERYWHERE, dtype="float32", shape=SHAPE, seed=1):
    return distributions.make(name, shape, dtype, domain, distributions.secret_rng(seed))


def bits(x):
    return x.view(np.uint32)


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_every_admitted_distribution_stays_in_the_domain(domain, dtype):
    names = distributions.distributions_for(domain, dtype)
    assert names[0] == "normal"
    for name in names:
        x = draw(name, domain, dtype)
        assert x.shape == SHAPE
        numbers = (x.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else x
        assert np.isfinite(numbers).all()
        limits = torch.tensor([domain.low, domain.high], dtype=getattr(torch, dtype)).double().tolist()
        assert limits[0] <= numbers.astype(np.float64).min()
        assert numbers.astype(np.float64).max() <= limits[1]


def test_a_domain_admits_only_what_fits():
    names = distributions.distributions_for
    everything = (
        "normal",
        "uniform",
        "large",
        "wide",
        "tiny",
        "constant_rows",
        "mixed_signs",
        "binary",
        "end_rows",
        "end_columns",
    )
    assert names(EVERYWHERE) == everything
    moderate = InputDomain(fill="normal", low=-4.0, high=4.0)
    assert names(moderate) == tuple(name for name in everything if name not in ("large", "wide"))
    assert names(InputDomain(fill="uniform", low=0.0, high=1.0)) == (
        "normal",
        "uniform",
        "tiny",
        "constant_rows",
        "binary",
    )
    assert names(InputDomain(fill="normal", low=0.5, high=2.0)) == ("normal", "uniform", "constant_rows")
    assert names(InputDomain()) == ()
    assert names(InputDomain(fill="normal", non_finite=True)) == (*everything, "non_finite")
    assert names(InputDomain(fill="uniform", low=0, high=9), "int64") == ("uniform", "constant_rows", "binary")
    assert names(InputDomain(fill="uniform", low=3, high=3), "int64") == names(EVERYWHERE, "bool") == ("uniform",)


def test_the_distributions_are_what_they_say():
    assert draw("normal").std() == pytest.approx(1.0, abs=0.05)
    assert draw("normal").mean() == pytest.approx(0.0, abs=0.05)
    assert draw("normal", InputDomain(fill="normal", low=0.0)).mean() == pytest.approx(math.sqrt(2 / math.pi), abs=0.05)
    uniform = draw("uniform")
    assert 0.0 <= uniform.min() < 0.01 < 0.99 < uniform.max() <= 1.0
    assert draw("large").std() == pytest.approx(30.0, rel=0.1)
    wide = np.abs(draw("wide", InputDomain(fill="normal", low=-500.0, high=8000.0)))
    assert 0.9 < wide.min() < 1.1
    assert 4000 < wide.max() <= 8000
    assert 0.2 < (wide > 100).mean() < 0.5, "every magnitude is as likely"
    assert draw("wide", InputDomain(fill="normal", low=20.0)).min() >= 20.0
    for lopsided in (InputDomain(fill="normal", high=-3.0), InputDomain(fill="normal", low=-1e4, high=0.5)):
        below = draw("wide", lopsided)
        assert below.max() <= -1.0
        assert below.min() < -1000.0
    assert 0 < np.abs(draw("tiny")).max() < 1e-10
    assert np.count_nonzero(draw("tiny", dtype="float16")) > 0.9 * math.prod(SHAPE)
    rows = draw("constant_rows")
    assert (rows == rows[:, :1]).all()
    assert len(np.unique(rows[:, 0])) > 10
    assert set(np.unique(draw("binary"))) == {0.0, 1.0}
    ends = draw("end_rows")
    assert set(np.sign(ends[:, 0])) == {-1.0, 1.0}
    assert (np.sign(ends) == np.sign(ends[:, :1])).all()
    assert 2.4e5 < np.abs(ends).min() < 3e5
    assert 9e5 < np.abs(ends).max() <= 1e6
    columns = draw("end_columns", InputDomain(fill="normal", low=-8.0, high=400.0))
    assert (np.sign(columns) == np.sign(columns[:1])).all()
    assert columns.min() >= -8.0
    assert columns[columns < 0].max() <= -2.0
    assert columns[columns > 0].min() >= 100.0
    assert (draw("end_rows", InputDomain(fill="normal", low=1.0, high=400.0)) >= 100.0).all()
    mixed = draw("mixed_signs")
    assert np.abs(mixed).max() / np.abs(mixed).min() > 5000
    assert 0.4 < (mixed > 0).mean() < 0.6


@pytest.mark.parametrize(
    ("low", "high", "kinds"),
    [(-math.inf, math.inf, {"nan", "inf", "-inf"}), (0.0, math.inf, {"nan", "inf"}), (-2.0, 2.0, {"nan"})],
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_is_not_finite_is_what_the_domain_admits_and_spares_half_of_the_rows(low, high, kinds, dtype):
    x = draw("non_finite", InputDomain(fill="normal", low=low, high=high, non_finite=True), dtype)
    numbers = (x.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else x
    strange = ~np.isfinite(numbers)
    assert set(map(str, numbers[strange].astype(np.float64).tolist())) == kinds
    assert strange.sum(axis=-1).max() == 1
    assert 0.25 < strange.any(axis=-1).mean() < 0.75
    assert not np.isfinite(draw("non_finite", InputDomain(fill="normal", non_finite=True), shape=(1,))).any()


def test_integers_and_booleans():
    x = draw("uniform", InputDomain(fill="uniform", low=0, high=3), "int64")
    assert x.dtype == np.int64
    assert set(np.unique(x)) == {0, 1, 2, 3}
    far = InputDomain(fill="uniform", low=-(2.0**40), high=2.0**40)
    bounds = draw("binary", far, "int32")
    assert bounds.dtype == np.int32
    assert set(np.unique(bounds)) == {-(2**31), 2**31 - 1}
    rows = draw("constant_rows", far, "int64")
    assert (rows == rows[:, :1]).all()
    assert len(np.unique(rows)) > 10
    assert draw("uniform", EVERYWHERE, "bool").dtype == np.bool_
    with pytest.raises(UsageError, match="finite bounds"):
        draw("uniform", EVERYWHERE, "int32")
    with pytest.raises(UsageError, match="structured"):
        draw("uniform", EVERYWHERE, "complex64")
    with pytest.raises(UsageError, match="no distribution"):
        draw("gaussian")


def test_the_seed_decides():
    assert np.array_equal(draw("normal", seed=4), draw("normal", seed=4))
    assert not np.array_equal(draw("normal", seed=4), draw("normal", seed=5))


def test_bfloat16_rounds_to_nearest():
    x = draw("uniform", dtype="bfloat16", seed=8)
    plain = draw("uniform", dtype="float64", seed=8)
    wanted = torch.from_numpy(plain).float().bfloat16().view(torch.uint16).numpy()
    assert np.array_equal(x, wanted)


# ------------------------------------------------------------------------------------------------- probe format


def test_normal_data_has_the_probe_format():
    coded = bits(draw("normal"))
    assert np.array_equal(coded >> 12 & 1, coded >> 15 & 1)
    assert 0.45 < (coded >> 12 & 1).mean() < 0.55
    assert ((coded & 0xFFF) != 0).all()


def test_a_pair_differs_in_float32_and_in_nothing_coarser():
    rng = distributions.secret_rng(2)
    x, y = distributions.probe_pair(draw("normal"), rng)
    assert (x != y).mean() > 0.99
    first, second = torch.from_numpy(x), torch.from_numpy(y)
    assert torch.equal(first.bfloat16(), second.bfloat16())
    ordinary = first.abs() > 2.0**-14  # below, float16 is subnormal and drops other bits
    assert torch.equal(first.half()[ordinary], second.half()[ordinary])
    for rounding in (0, 0x0FFF, 0x1000):  # TF32 by truncation, to nearest even (but for ties), to nearest away
        assert np.array_equal((bits(x) + rounding) & ~np.uint32(0x1FFF), (bits(y) + rounding) & ~np.uint32(0x1FFF))
    assert np.array_equal(bits(x) >> 16, bits(y) >> 16)
    assert np.array_equal(bits(distributions.probe_format(x, rng)) >> 16, bits(x) >> 16)


def test_the_format_barely_moves_a_number_and_keeps_zeros():
    x = np.array([0.0, -0.0, 1.0, -3.75, 1e-30, 3e38, 1e-42], dtype=np.float32)
    first, second = distributions.probe_pair(x, distributions.secret_rng(1))
    for coded in (first, second):
        np.testing.assert_allclose(coded, x, rtol=2.0**-7)
        assert np.array_equal(coded[[0, 1, 6]], x[[0, 1, 6]])
        assert np.isfinite(coded).all()


def test_a_pair_stays_in_its_domain():
    x = np.array([0.1, 0.2, 0.15], dtype=np.float32)
    for seed in range(20):
        for coded in distributions.probe_pair(x, distributions.secret_rng(seed), 0.1, 0.2):
            assert coded.min() >= np.float32(0.1)
            assert coded.max() <= np.float32(0.2)
    assert distributions.probe_format(np.float32(1.5), distributions.secret_rng(1)).shape == ()


def test_the_format_does_not_bias_long_sums():
    x = draw("normal", InputDomain(fill="normal", low=0.0), shape=(1 << 15,))
    running = np.cumsum(x, dtype=np.float32)[-1]
    exact = math.fsum(x.tolist())
    assert abs(float(running) - exact) / exact < 2.0**-24 * 200  # fixed zero bits would give thousands


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (2, 1, 3)])
@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_every_shape_can_be_drawn(domain, shape):
    for name in distributions.distributions_for(domain):
        assert draw(name, domain, shape=shape).shape == shape, name
