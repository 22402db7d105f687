"""Data that the keeper draws on its device has the distributions that the host draws."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest

from kernelwright.evaluator.accuracy import distributions
from kernelwright.evaluator.accuracy.quantiles import like_slots
from kernelwright.evaluator.accuracy.trials import Variant
from kernelwright.evaluator.device.keeper_client import Keeper
from kernelwright.evaluator.device.pool import DevicePool, DeviceSource
from kernelwright.evaluator.device.trials import DeviceTrials
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.wire.calls import CallPlan
from kernelwright.records import InputDomain

RNG = np.random.default_rng(3)


@pytest.fixture(scope="module")
def keeper(rehearsed):
    made = Keeper(rehearsed.library, images=rehearsed.images)
    yield made
    made.close()


def variant_of(*inputs):
    """A variant with tensors of (dtype, shape, domain)."""
    specs, size = wire.place(
        [wire.TensorSpec(f"x{i}", d, shape, wire.contiguous_stride(shape)) for i, (d, shape, _) in enumerate(inputs)],
        margin=64,
    )
    domains = tuple(domain for *_, domain in inputs)
    names = tuple(spec.name for spec in specs)
    return Variant({}, [], tuple(specs), names, domains, (), (), (), CallPlan(), size, (), 0, 0, ())


def drawn(keeper, name, dtype, shape, domain):
    variant = variant_of((dtype, shape, domain))
    source = DeviceSource(keeper, variant, [name])
    spec = variant.inputs[0]
    memory = keeper.allocate(spec.span_bytes)
    source.put(memory, 0, name, spec, domain)
    values = np.frombuffer(keeper.get(memory, spec.span_bytes), dtype={"bool": np.bool_}.get(dtype, dtype))
    source.close()
    keeper.release(memory)
    return values.reshape(shape)


DOMAINS = {
    "free": InputDomain(fill="normal"),
    "positive": InputDomain(fill="uniform", low=0.5, high=9.0),
    "bounded": InputDomain(fill="uniform", low=-40.0, high=100.0),
}


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_distribution_is_the_hosts(keeper, domain):
    admitted = distributions.distributions_for(DOMAINS[domain])
    assert len(admitted) >= 5
    for name in admitted:
        ours = drawn(keeper, name, "float32", (2000, 25), DOMAINS[domain])
        theirs = like_slots(name, (2000, 25), DOMAINS[domain], RNG)
        assert np.nanmin(ours) >= np.float32(DOMAINS[domain].low)
        assert np.nanmax(ours) <= np.float32(DOMAINS[domain].high)
        shares = np.linspace(0.05, 0.95, 19)
        ranks = [np.mean(theirs < q) for q in np.quantile(ours, shares)]
        ties = [np.mean(theirs <= q) for q in np.quantile(ours, shares)]
        rows = 0.08 if name in ("constant_rows", *distributions.FAR) else 0.02
        for share, low, high in zip(shares, ranks, ties, strict=True):
            assert low - rows <= share <= high + rows, (name, share, low, high)
        assert (len(np.unique(ours[0])) == 1) == (len(np.unique(theirs[0])) == 1)
        assert (len(np.unique(np.sign(ours[:, 0]))) == 1) == (len(np.unique(np.sign(theirs[:, 0]))) == 1)


@pytest.mark.parametrize("shape", [(7,), (1, 9), (4, 6), (3, 2, 5)])
@pytest.mark.parametrize("name", distributions.FAR)
def test_ends_alternate_as_on_the_host(keeper, name, shape):
    patterns = [np.sign(drawn(keeper, name, "float32", shape, DOMAINS["free"])) for _ in range(12)]
    host = [np.sign(distributions.make(name, shape, "float32", DOMAINS["free"], RNG)) for _ in range(12)]
    found = {pattern.tobytes() for pattern in patterns}
    assert 1 <= len(found) <= 2
    if math.prod(shape[:-1]) == 1 and name == "end_rows":
        assert {np.count_nonzero(np.diff(np.frombuffer(pattern, np.float32))) for pattern in found} == {1}
    else:
        assert found <= {pattern.tobytes() for pattern in host}


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [("int64", -5, 5), ("int32", 0, 1 << 30), ("uint8", 3, 4), ("bool", 0, 1)]
)
@pytest.mark.parametrize("name", ["uniform", "binary", "constant_rows"])
def test_integers_stay_within_their_bounds(keeper, dtype, low, high, name):
    values = drawn(keeper, name, dtype, (20, 50), InputDomain(fill="uniform", low=low, high=high))
    assert low <= values.min() <= values.max() <= high
    if dtype != "bool":
        assert (len(np.unique(values[0])) == 1) == (name == "constant_rows")
    if name == "binary":
        assert set(np.unique(values)) == {low, high}


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_what_the_device_does_not_draw_comes_from_the_host(keeper, dtype):
    values = drawn(keeper, "normal", dtype, (50, 60), DOMAINS["free"])
    assert abs(float(values.astype(np.float64).mean())) < 0.1
    assert 0.9 < float(values.astype(np.float64).std()) < 1.1
    assert np.isnan(drawn(keeper, "non_finite", "float32", (50, 60), InputDomain(fill="normal", non_finite=True))).any()


def test_slots_differ_and_are_drawn_anew(keeper):
    variant = variant_of(
        ("float32", (16, 16), DOMAINS["free"]), ("int64", (5,), InputDomain(fill="uniform", low=0, high=99))
    )
    source = DeviceSource(keeper, variant, ["normal", "large", "own"])
    pool = DevicePool(keeper, variant, source, 64, DeviceTrials(keeper))
    pool.refill(range(64))
    before = np.frombuffer(keeper.get(pool.memory, pool.stride * 64), dtype=np.uint8).reshape(64, -1)
    assert len({row.tobytes() for row in before}) == 64
    assert {pool.label(slot) for slot in range(64)} <= {"normal", "large"}
    assert sum(pool.label(slot) == "normal" for slot in range(64)) > 48
    pool.refill([3])
    after = np.frombuffer(keeper.get(pool.memory, pool.stride * 64), dtype=np.uint8).reshape(64, -1)
    assert [slot for slot in range(64) if not np.array_equal(before[slot], after[slot])] == [3]
    sealed, fd = keeper.share(pool.stride * 64)
    os.close(fd)
    pool.seal([3, 4], [11, 12], sealed)
    lies = np.frombuffer(keeper.get(sealed, 3 * pool.stride), dtype=np.uint8).reshape(3, -1)
    assert [bool(row.any()) for row in lies] == [True, True, False]  # in the order of their calls
    pool.close()
    source.close()
