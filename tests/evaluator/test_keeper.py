"""The keeper on a stand-in for the driver: what it makes, seals and compares, beside the same in numpy."""

from __future__ import annotations

import math
import os
import secrets
import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kernelwright.evaluator.accuracy import arrays, budget
from kernelwright.evaluator.accuracy.quantiles import quantiles
from kernelwright.evaluator.device.keeper_client import Expected, Keeper, KeeperError, Placed
from kernelwright.evaluator.driver import kernels
from kernelwright.evaluator.wire import keeper as wire
from kernelwright.evaluator.wire.tensors import contiguous_stride
from kernelwright.records import InputDomain

RNG = np.random.default_rng(7)
NORMAL = InputDomain(fill="normal")


@pytest.fixture
def keeper(rehearsed):
    made = Keeper(rehearsed.library, images=rehearsed.images)
    yield made
    made.close()


def placed(keeper, values, dtype="float32", stride=None, shape=None):
    """An array on the device, in C order or with strides over its own bytes."""
    memory = keeper.allocate(max(values.nbytes, 1))
    keeper.put(memory, values)
    shape = shape or values.shape
    return Placed(memory, 0, dtype, tuple(shape), tuple(stride or contiguous_stride(shape)))


def expected(keeper, low, exact, scale, dtype="float32"):
    whole = np.concatenate([np.asarray(a, dtype=np.float64).ravel() for a in (low, exact, scale)])
    memory, size = keeper.allocate(whole.nbytes), 8 * exact.size
    keeper.put(memory, whole)
    norm, unit = keeper.scales(memory, 2 * size, exact.size)
    assert norm == pytest.approx(float(np.linalg.norm(scale.ravel())), rel=1e-12)
    assert unit == scale.max()
    close = 1e-2 if dtype in ("float16", "bfloat16") else 1e-4
    return Expected(memory, 0, size, 2 * size, arrays.largest(dtype), unit, close)


def test_the_shipped_code_is_of_the_sources():
    for name in kernels.MODULES:
        first = kernels.ptx(name).partition(b"\n")[0].decode()
        assert first == f"// {kernels.source_hash(name)}", "run scripts/device_code.py"


def test_the_shipped_code_assembles_for_every_architecture(tmp_path):
    from kernelwright.evaluator.builds.emulation import assembly_command

    for name in kernels.MODULES:
        (tmp_path / f"{name}.ptx").write_bytes(kernels.ptx(name)[:-1])
        for architecture in ("sm_75", "sm_80", "sm_90", "sm_100"):
            command = assembly_command(architecture, str(tmp_path / f"{name}.ptx"), str(tmp_path / "out"))
            assert command is not None, "Triton, which brings ptxas, is not installed"
            done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr


def test_a_keeper_says_what_its_device_can_do_and_leaves_nothing(rehearsed):
    keeper = Keeper(rehearsed.library, images=rehearsed.images)
    assert keeper.about["name"] == "stand-in"
    assert keeper.about["attributes"]["VIRTUAL_MEMORY"] == 1
    pid = keeper.pid
    keeper.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_each_thread_gets_the_answers_to_its_own_questions(keeper):
    def asked(number):
        values = np.full(1000 + number, number, dtype=np.float32)
        memory = keeper.allocate(values.nbytes)
        keeper.put(memory, values)
        return [np.frombuffer(keeper.get(memory, values.nbytes), dtype=np.float32).tolist() for _ in range(20)]

    with ThreadPoolExecutor(4) as threads:
        for number, found in enumerate(threads.map(asked, range(8))):
            assert found == [[number] * (1000 + number)] * 20


def test_a_keeper_without_a_driver_says_so(rehearsed):
    with pytest.raises(KeeperError, match="driver cannot be loaded"):
        Keeper("libnothing.so.1", images=rehearsed.images)


@pytest.mark.parametrize("lacking", ["102", "103"])
def test_a_device_that_cannot_share_memory_is_refused_with_a_way_out(rehearsed, monkeypatch, lacking):
    monkeypatch.setenv("KW_STANDIN_WITHOUT", lacking)
    with pytest.raises(KeeperError, match="with device = none, kernels are checked here and not timed"):
        Keeper(rehearsed.library, images=rehearsed.images)


def test_a_killed_keeper_is_told_as_such(keeper):
    os.kill(keeper.pid, 9)
    with pytest.raises(KeeperError, match="keeper of the device has ended"):
        keeper.allocate(64)


def test_memory_is_bounded_and_can_run_out(keeper):
    memory = keeper.allocate(64)
    with pytest.raises(KeeperError, match="do not lie in 64 bytes"):
        keeper.put(memory, np.zeros(65, dtype=np.uint8))
    with pytest.raises(KeeperError, match="out of memory"):
        keeper.allocate(1 << 50)
    keeper.release(memory)
    assert keeper.get(keeper.allocate(16), 16) == bytes(16)


# ------------------------------------------------------------------------------------------------------ inputs


@pytest.mark.parametrize("name", ["normal", "uniform", "wide", "tiny"])
def test_data_of_tables_is_as_timed_slots_hold_it(keeper, name):
    table = quantiles(name, NORMAL)
    tables = keeper.allocate(table.nbytes)
    keeper.put(tables, table)
    memory, count = keeper.allocate(4 * 100_003), 100_003
    probing = name == "normal"
    kind = wire.Fill.PROBE_TABLE if probing else wire.Fill.TABLE
    keeper.fill([wire.Piece(memory.number, 0, count, tables.number, 0, secrets.randbits(64), kind, 4)])
    bits = np.frombuffer(keeper.get(memory, 4 * count), dtype=np.uint32)
    assert set(np.unique(bits & 0xFFFF0000)) <= set(table.tolist())
    assert len(np.unique(bits)) > 0.9 * count
    if probing:
        assert np.array_equal(bits >> 12 & 1, bits >> 15 & 1)
        assert np.all(bits & 0xFFF)
    values, drawn = bits.view(np.float32), np.sort(table.view(np.float32))
    for share in (0.1, 0.5, 0.9):
        near = drawn[[int(4096 * max(share - 0.02, 0)), int(4096 * min(share + 0.02, 0.999))]]
        assert near[0] <= np.quantile(values, share) <= near[1]
    halves = np.sort(values[: count // 2]), np.sort(values[count // 2 :])
    assert not np.array_equal(halves[0], halves[1][: len(halves[0])])


def test_integers_bits_rows_and_ends(keeper):
    memory, count = keeper.allocate(8 * 4096), 4096
    number, key = memory.number, secrets.randbits(64)

    def drawn(kind, dtype, **more):
        item = np.dtype(dtype).itemsize
        table = more.pop("table", 0)
        keeper.fill([wire.Piece(number, 0, count, table, 0, key, kind, item, **more)])
        return np.frombuffer(keeper.get(memory, item * count), dtype=dtype)

    integers = drawn(wire.Fill.UNIFORM_INTEGERS, np.int64, low=-3, high=5)
    assert set(integers.tolist()) == set(range(-3, 6))
    small = drawn(wire.Fill.UNIFORM_INTEGERS, np.uint8, low=0, high=255)
    assert len(np.unique(small)) == 256
    one = int(np.float32(1.0).view(np.uint32))
    ones = drawn(wire.Fill.EITHER, np.float32, low=0, high=one)
    assert set(ones.tolist()) == {0.0, 1.0}
    assert 0.45 < ones.mean() < 0.55
    table = keeper.allocate(4 * 4096)
    keeper.put(table, RNG.standard_normal(4096).astype(np.float32))
    rows = drawn(wire.Fill.ROWS_OF_TABLE, np.float32, row=64, table=table.number).reshape(-1, 64)
    assert np.all(rows == rows[:, :1])
    assert len(np.unique(rows[:, 0])) > 50
    ends = drawn(wire.Fill.ENDS, np.float32, row=64, high=count, ends=(-8.0, -2.0, 8.0, 2.0)).reshape(-1, 64)
    assert set(np.sign(ends[:, 0])) == {-1.0, 1.0}
    assert np.all(np.sign(ends) == np.sign(ends[:, :1]))
    assert np.all((np.abs(ends) >= 2.0) & (np.abs(ends) <= 8.0))


def test_another_key_gives_other_data_and_the_same_key_the_same(keeper):
    memory = keeper.allocate(4096)

    def drawn(key):
        keeper.fill([wire.Piece(memory.number, 0, 4096, 0, 0, key, wire.Fill.UNIFORM_INTEGERS, 1, low=0, high=255)])
        return keeper.get(memory, 4096)

    assert drawn(5) == drawn(5) != drawn(6)


def test_a_sealed_slot_shows_nothing_of_its_data(keeper):
    """Philox of Salmon et al.: the first words for key and counter 0 are their published ones."""
    size = 4096
    plain, (sealed, fd) = keeper.allocate(3 * size), keeper.share(3 * size)
    os.close(fd)
    keeper.seal([(plain, 0, sealed, 0, 0), (plain, size, sealed, 2 * size, 1)], size)
    words = np.frombuffer(keeper.get(sealed, 3 * size), dtype=np.uint32).reshape(3, -1)
    assert [hex(word) for word in words[0, :4]] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    assert not words[1].any()
    assert len(np.unique(words[[0, 2]])) > 2000


# ----------------------------------------------------------------------------------------------------- outputs


def hostile(dtype):
    """An output with an error here and there, infinities, NaN, and values that overflow its dtype."""
    exact = RNG.standard_normal((37, 53)) * np.exp2(RNG.integers(-8, 8, (37, 53)))
    exact[3, 4], exact[5, 6], exact[7, 8] = math.inf, math.nan, 1e300
    low = np.where(np.abs(exact) > arrays.largest(dtype), np.copysign(math.inf, exact), exact)
    return exact, low


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("peaks", [False, True])
def test_error_sums_are_those_of_numpy(keeper, dtype, peaks):
    exact, low = hostile(dtype)
    low = low.astype(dtype).astype(np.float64)
    scale = 1e-3 * (0.1 + np.abs(RNG.standard_normal(exact.shape)))
    value = (np.where(np.isfinite(low), low + scale * RNG.standard_normal(exact.shape), low)).astype(dtype)
    ours, noise = keeper.errors(placed(keeper, value, dtype), expected(keeper, low, exact, scale, dtype), peaks=peaks)
    theirs = arrays.error_sums(value, exact, scale, dtype=dtype, ref_low=low, peaks=peaks)
    assert ours.unlike is theirs.unlike is False
    assert (ours.elements, ours.allclose) == (theirs.elements, theirs.allclose)
    assert [ours.norm, ours.largest, ours.deciding] == pytest.approx([theirs.norm, theirs.largest, theirs.deciding])
    assert theirs.q99 <= ours.q99 <= 1.005 * theirs.q99
    assert noise == pytest.approx(arrays.noise_of(value, exact, scale))
    judged = [budget.judge_sums(sums, [budget.Reduction(64)]) for sums in (ours, theirs)]
    assert judged[0].passed is judged[1].passed


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_found_where_it_does_not_belong(keeper, wrong):
    exact = RNG.standard_normal(100)
    value = exact.astype(np.float32)
    value[17] = wrong
    sums, _ = keeper.errors(placed(keeper, value), expected(keeper, exact, exact, np.full(100, 1e-6)))
    theirs = arrays.error_sums(value, exact, np.full(100, 1e-6), ref_low=exact)
    assert sums.unlike
    assert theirs.unlike
    assert not budget.judge_sums(sums, []).passed


def test_outputs_of_any_layout_are_read_as_they_lie(keeper):
    base = RNG.standard_normal((8, 6, 10)).astype(np.float32)
    view = base.transpose(2, 0, 1)[:, ::2]
    steps = tuple(s // 4 for s in view.strides)
    exact = view.astype(np.float64)
    output = placed(keeper, base, stride=steps, shape=view.shape)
    sums, _ = keeper.errors(output, expected(keeper, exact, exact, np.full(exact.shape, 1e-6)))
    assert sums.largest == 0.0
    assert sums.elements == exact.size
    with pytest.raises(KeeperError, match="do not lie in"):
        keeper.errors(output._replace(offset=256), expected(keeper, exact, exact, np.full(exact.shape, 1e-6)))


def test_a_layout_that_reaches_before_its_memory_is_refused(keeper):
    values = RNG.standard_normal(64).astype(np.float32)
    truth = expected(keeper, values, values.astype(float), np.full(64, 1e-6))
    with pytest.raises(KeeperError, match="must not be negative"):
        keeper.errors(placed(keeper, values, stride=(-1,)), truth)
    with pytest.raises(KeeperError, match="do not lie in"):
        keeper.errors(placed(keeper, values, stride=(1 << 62,)), truth)
    with pytest.raises(KeeperError, match="are not 64 elements"):
        keeper.difference(placed(keeper, values), placed(keeper, values[:32]))


def test_an_error_of_nothing_in_units_of_nothing_harms_nobody(keeper):
    values = np.zeros(64, dtype=np.float32)
    sums, _ = keeper.errors(placed(keeper, values), expected(keeper, values, values.astype(float), np.zeros(64)))
    assert (sums.largest, sums.q99) == (0.0, 0.0)
    wrong = np.ones(64, dtype=np.float32)
    sums, _ = keeper.errors(placed(keeper, wrong), expected(keeper, values, values.astype(float), np.zeros(64)))
    assert sums.largest == 1e300
    assert not budget.judge_sums(sums, []).passed


def test_bfloat16_is_read_as_torch_writes_it(keeper):
    values = RNG.standard_normal(256).astype(np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    exact = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    truth = expected(keeper, exact, exact, np.full(256, 1e-6), "bfloat16")
    sums, _ = keeper.errors(placed(keeper, bits, "bfloat16"), truth)
    assert (sums.largest, sums.elements) == (0.0, 256)


def test_the_response_of_an_output_is_that_of_numpy(keeper):
    scale = 1e-6 * (0.5 + RNG.random(1003))
    exact = RNG.standard_normal((2, 1003))
    exact[1] = exact[0] + 1e-4 * RNG.standard_normal(1003)
    values = exact.astype(np.float32)
    values[:, :200] = values[0, :200]  # the first blocks do not respond
    truths = tuple(expected(keeper, e, e, scale) for e in exact)
    ours = keeper.response((placed(keeper, values[0]), placed(keeper, values[1])), truths)
    theirs = arrays.response_sums(values[0].astype(float) - values[1], exact[0] - exact[1], scale)
    assert ours.whole == pytest.approx(theirs.whole)
    assert [b for pair in ours.blocks for b in pair] == pytest.approx([b for pair in theirs.blocks for b in pair])
    assert not budget.judge_response(ours).passed


def test_two_outputs_are_told_apart(keeper):
    a = RNG.standard_normal(5000).astype(np.float32)
    b = a.copy()
    assert keeper.difference(placed(keeper, a), placed(keeper, b)) == (0.0, 0.0, 0, 0)
    b[7] += 0.5
    b[9], a[11], b[11] = math.nan, math.inf, math.inf
    found = keeper.difference(placed(keeper, a), placed(keeper, b))
    assert found.norm == pytest.approx(0.5, rel=1e-5)
    assert (found.unlike, found.different) == (1, 2)
    big = np.array([2**60, 2**60 + 1], dtype=np.int64)
    other = keeper.difference(placed(keeper, big, "int64"), placed(keeper, big[::-1].copy(), "int64"))
    assert other.different == 2


def test_the_digest_sees_every_byte_at_every_alignment(keeper):
    data = RNG.integers(0, 256, 5003, dtype=np.uint8)
    memory = keeper.allocate(6000)
    sums = []
    for offset in range(9):
        keeper.put(memory, data, offset)
        sums.append(keeper.digest([(memory, offset, 5003)], 42))
    assert len(set(sums)) == 1
    assert keeper.digest([(memory, 8, 5003)], 43) != sums[0]
    for at in (0, 2500, 5002):
        changed = data.copy()
        changed[at] ^= 1
        keeper.put(memory, changed, 8)
        assert keeper.digest([(memory, 8, 5003)], 42) != sums[0]
    halves = (memory, 0, 16), (memory, 16, 16)
    assert keeper.digest(halves, 1) != keeper.digest(halves[::-1], 1)
