"""Triton kernels run in the corrected interpreter. A script of its own, because the interpreter takes a whole process.

Prints one JSON object: the name of each case, and "ok" or what went wrong.
"""

from __future__ import annotations

import json
import sys
import threading
import traceback
import warnings

from kernelwright.evaluator.worker.triton.interpreter import (
    NotCheckable,
    OutOfBounds,
    cuda_as_cpu,
    install,
    next_order,
)

install()

import pytest  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402
from triton.language.extra.cuda import libdevice as cuda_libdevice  # noqa: E402
from triton.runtime import interpreter as engine  # noqa: E402

CASES = []
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def case(function):
    CASES.append(function)
    return function


def close(actual, expected, tolerance):
    expected = expected.to(actual.dtype)
    error = (actual.double() - expected.double()).abs().max().item()
    scale = expected.double().abs().max().item()
    assert error <= tolerance * scale, f"error {error} at scale {scale}"


def refused(kind, words, call):
    with pytest.raises(kind) as report:
        call()
    assert type(report.value) is kind
    missing = [word for word in words if word not in str(report.value)]
    assert not missing, f"{missing} not in {report.value}"


# ------------------------------------------------------------------------------------------ whole kernels


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@case
def add():
    for dtype in DTYPES:
        x, y = torch.randn(1000).to(dtype), (100 * torch.randn(1000)).to(dtype)
        out = torch.empty_like(x)
        add_kernel[(triton.cdiv(1000, 128),)](x, y, out, 1000, BLOCK=128)
        assert torch.equal(out, x + y), dtype


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf")).to(tl.float32)
    exponents = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + at, (exponents / tl.sum(exponents, 0)).to(out.dtype.element_ty), mask=at < columns)


@case
def softmax():
    for dtype, tolerance in zip(DTYPES, (1e-6, 1e-3, 8e-3), strict=True):
        x = torch.randn(5, 77).to(dtype)
        out = torch.empty_like(x)
        softmax_kernel[(5,)](x, out, 77, BLOCK=128)
        close(out, torch.softmax(x.double(), -1), tolerance)


@triton.jit
def layer_norm_kernel(x, weight, bias, out, columns, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(values, 0) / columns
    centred = tl.where(inside, values - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / columns + eps)
    result = centred * scale * tl.load(weight + at, mask=inside) + tl.load(bias + at, mask=inside)
    tl.store(out + row * columns + at, result.to(out.dtype.element_ty), mask=inside)


@case
def layer_norm():
    for dtype, tolerance in zip(DTYPES, (1e-6, 1e-3, 8e-3), strict=True):
        x, weight, bias = (t.to(dtype) for t in (torch.randn(6, 100) + 3, torch.rand(100), torch.randn(100)))
        out = torch.empty_like(x)
        layer_norm_kernel[(6,)](x, weight, bias, out, 100, 1e-5, BLOCK=128)
        close(out, F.layer_norm(x.double(), (100,), weight.double(), bias.double()), tolerance)


@triton.jit
def matmul_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        inner = start + tl.arange(0, BK)
        left = tl.load(
            a + rows[:, None] * K + inner[None, :], mask=(rows[:, None] < M) & (inner[None, :] < K), other=0.0
        )
        right = tl.load(b + inner[:, None] * N + columns[None, :], mask=(inner[:, None] < K) & (columns[None, :] < N))
        total = tl.dot(left, right, total, input_precision=PRECISION)
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(c.dtype.element_ty), mask=mask)


def matmul_with(dtype, precision):
    a, b = torch.randn(50, 70).to(dtype), torch.randn(70, 40).to(dtype)
    c = torch.empty(50, 40, dtype=dtype)
    matmul_kernel[(2, 2)](a, b, c, 50, 40, 70, BM=32, BN=32, BK=32, PRECISION=precision)
    return c, a.double() @ b.double()


@case
def matmul():
    for dtype, tolerance in zip(DTYPES, (1e-6, 1e-3, 8e-3), strict=True):
        close(*matmul_with(dtype, "ieee"), tolerance)


@case
def float32_products_are_tf32_unless_the_kernel_asks_for_ieee():
    actual, expected = matmul_with(torch.float32, None)
    error = (actual.double() - expected).abs().max() / expected.abs().max()
    assert 1e-5 < error < 1e-3, error


# ------------------------------------------------------------------------------------------ narrow formats


@triton.jit
def bf16_kernel(x, y, out, flags, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, a + b)
    tl.store(out + N + at, a * b)
    tl.store(out + 2 * N + at, a - 1.5)
    tl.store(out + 3 * N + at, a / b)
    tl.store(out + 4 * N + at, tl.maximum(a, b))
    tl.store(out + 5 * N + at, tl.where(a < b, a, b))
    tl.store(out + 6 * N + at, -a)
    tl.store(out + 7 * N + at, tl.abs(a))
    tl.store(flags + at, (a < b).to(tl.int32) + 2 * (a == b).to(tl.int32))


@case
def bf16_arithmetic_and_comparisons():
    x, y = torch.randn(64).bfloat16(), torch.randn(64).bfloat16()
    y[:8] = x[:8]
    out, flags = torch.empty(8, 64, dtype=torch.bfloat16), torch.empty(64, dtype=torch.int32)
    bf16_kernel[(1,)](x, y, out, flags, N=64)
    expected = (x + y, x * y, x - 1.5, x / y, torch.maximum(x, y), torch.minimum(x, y), -x, x.abs())
    for i, value in enumerate(expected):
        assert torch.equal(out[i], value), f"operation {i}"
    assert torch.equal(flags, (x < y).int() + 2 * (x == y).int())


@triton.jit
def bf16_reduce_kernel(x, total, largest, position, running, N: tl.constexpr):
    values = tl.load(x + tl.arange(0, N))
    tl.store(total, tl.sum(values, 0))
    tl.store(largest, tl.max(values, 0).to(tl.bfloat16))
    tl.store(position, tl.argmax(values, 0))
    tl.store(running + tl.arange(0, N), tl.cumsum(values, 0))


@case
def bf16_reductions_and_scans():
    x = torch.randn(128).bfloat16()
    total, largest = torch.empty(1, dtype=torch.bfloat16), torch.empty(1, dtype=torch.bfloat16)
    position, running = torch.empty(1, dtype=torch.int32), torch.empty(128)
    bf16_reduce_kernel[(1,)](x, total, largest, position, running, N=128)
    assert torch.equal(total[0], x.float().sum().bfloat16())
    assert torch.equal(largest[0], x.max())
    assert position.item() == x.argmax().item()
    close(running, x.double().cumsum(0), 1e-6)


@triton.jit
def cast_kernel(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))


@case
def casts_round_to_nearest_even():
    special = torch.tensor([0.0, -0.0, 1.00390625, 1.01171875, 3e38, float("inf"), float("-inf"), float("nan")])
    x = torch.cat([special, torch.randn(120) * 10 ** torch.randint(-30, 30, (120,)).float()])
    for source in (torch.float32, torch.float64):
        out = torch.empty(128, dtype=torch.bfloat16)
        cast_kernel[(1,)](x.to(source), out, N=128)
        assert torch.equal(out.view(torch.int16), x.bfloat16().view(torch.int16)) or out.isnan().sum() == 1
        assert torch.equal(out.nan_to_num(7), x.bfloat16().nan_to_num(7))
    back = torch.empty(128)
    cast_kernel[(1,)](x.bfloat16(), back, N=128)
    assert torch.equal(back.nan_to_num(7), x.bfloat16().float().nan_to_num(7))
    integers = torch.empty(128, dtype=torch.int32)
    cast_kernel[(1,)]((x.clamp(-1e4, 1e4).nan_to_num(7)).bfloat16(), integers, N=128)
    assert torch.equal(integers, x.clamp(-1e4, 1e4).nan_to_num(7).bfloat16().int())


@triton.jit
def truncate_kernel(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at).to(tl.bfloat16, fp_downcast_rounding="rtz"))


@case
def rounding_toward_zero_where_asked():
    x = torch.randn(64)
    out = torch.empty(64, dtype=torch.bfloat16)
    truncate_kernel[(1,)](x, out, N=64)
    assert torch.equal(out.float().view(torch.int32), x.view(torch.int32) & -65536)


@case
def fp8_casts_match_torch():
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        x = torch.randn(256) * torch.logspace(-9, 2, 256, base=2)
        out, back = torch.empty(256, dtype=dtype), torch.empty(256)
        cast_kernel[(1,)](x, out, N=256)
        assert torch.equal(out.view(torch.uint8), x.to(dtype).view(torch.uint8)), dtype
        cast_kernel[(1,)](out, back, N=256)
        assert torch.equal(back, x.to(dtype).float()), dtype


@triton.jit
def dot_kernel(a, b, c, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@case
def bf16_and_fp8_products():
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        a, b = torch.randn(32, 32).to(dtype), torch.randn(32, 32).to(dtype)
        c = torch.empty(32, 32)
        dot_kernel[(1,)](a, b, c, N=32)
        close(c, a.double() @ b.double(), 1e-6)


# ------------------------------------------------------------------------------------------ NaN, libdevice, autotune


@triton.jit
def nan_kernel(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    values = tl.load(x + at)
    tl.store(out + at, tl.maximum(values, 0.0))
    tl.store(out + N + at, tl.maximum(values, 0.0, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 2 * N + at, tl.clamp(values, -1.0, 1.0))


@case
def maximum_drops_nan_as_the_device_does():
    x = torch.tensor([float("nan"), 2.0, -3.0, 0.5])
    out = torch.empty(3, 4)
    nan_kernel[(1,)](x, out, N=4)
    assert out[0].tolist() == [0.0, 2.0, 0.0, 0.5]
    assert out[1].isnan().tolist() == [True, False, False, False]
    assert out[2].tolist() == [-1.0, 1.0, -1.0, 0.5]


@triton.jit
def library_kernel(x, out, flags, N: tl.constexpr):
    at = tl.arange(0, N)
    values = tl.load(x + at)
    tl.store(out + at, libdevice.tanh(values))
    tl.store(out + N + at, cuda_libdevice.erf(values))
    tl.store(out + 2 * N + at, libdevice.pow(tl.abs(values), 1.5))
    tl.store(out + 3 * N + at, libdevice.fast_expf(values))
    tl.store(out + 4 * N + at, tl.erf(values))
    tl.store(out + 5 * N + at, libdevice.log1p(tl.abs(values)))
    tl.store(out + 6 * N + at, libdevice.div_rn(values, 3.0))
    tl.store(out + 7 * N + at, libdevice.normcdf(values))
    tl.store(flags + at, libdevice.isnan(values).to(tl.int32))


@case
def libdevice_functions():
    x = torch.randn(64)
    out, flags = torch.empty(8, 64), torch.empty(64, dtype=torch.int32)
    library_kernel[(1,)](x, out, flags, N=64)
    wide = x.double()
    expected = [wide.tanh(), wide.erf(), wide.abs() ** 1.5, wide.exp(), wide.erf(), wide.abs().log1p(), wide / 3]
    for i, value in enumerate([*expected, torch.special.ndtr(wide)]):
        close(out[i], value, 1e-7)
    assert flags.sum() == 0


@triton.autotune(configs=[triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"], reset_to_zero=["out"])
@triton.jit
def tuned_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + at, tl.load(x + at, mask=at < n), mask=at < n)


@case
def autotuning_takes_the_first_configuration_and_runs_once():
    x, out = torch.randn(100), torch.zeros(100)
    blocks = []

    def grid(meta):
        blocks.append(meta["BLOCK"])
        return (triton.cdiv(100, meta["BLOCK"]),)

    tuned_kernel[grid](x, out, 100)
    assert torch.equal(out, x)
    assert blocks == [32]


@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def heuristic_kernel(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) * (2 if EVEN else 3))


@case
def heuristics():
    x, out = torch.ones(32), torch.zeros(32)
    heuristic_kernel[(1,)](x, out, 32, BLOCK=32)
    assert out.tolist() == [2.0] * 32


# ------------------------------------------------------------------------------------------ memory


@triton.jit
def unmasked_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))


@case
def a_load_past_the_end_is_reported_by_name():
    words = ["load out of bounds", "28 of 64 lanes", "0 bytes past the end of x", "(1, 0, 0)"]
    refused(OutOfBounds, words, lambda: unmasked_kernel[(2,)](torch.zeros(100), torch.zeros(128), BLOCK=64))


@case
def a_store_past_the_end_is_reported_and_writes_nothing():
    out = torch.zeros(100)
    refused(
        OutOfBounds,
        ["store out of bounds", "end of out"],
        lambda: unmasked_kernel[(2,)](torch.ones(128), out, BLOCK=64),
    )
    assert out[64:].sum() == 0


@triton.jit
def before_kernel(x, out):
    tl.store(out, tl.load(x - 1))


@case
def a_load_before_the_start_is_reported():
    refused(OutOfBounds, ["4 bytes before the start of x"], lambda: before_kernel[(1,)](torch.zeros(4), torch.zeros(1)))


@triton.jit
def atomic_kernel(out):
    tl.atomic_add(out + 4, 1.0)


@case
def an_atomic_out_of_bounds_is_reported():
    refused(OutOfBounds, ["atomic out of bounds"], lambda: atomic_kernel[(1,)](torch.zeros(4)))


@triton.jit
def block_pointer_kernel(x, out, rows, columns, B: tl.constexpr, CHECK: tl.constexpr):
    shape = (rows, columns)
    source = tl.make_block_ptr(x, shape, (columns, 1), (0, 0), (B, B), (1, 0))
    target = tl.make_block_ptr(out, shape, (columns, 1), (0, 0), (B, B), (1, 0))
    if CHECK:
        tl.store(target, tl.load(source, boundary_check=(0, 1)), boundary_check=(0, 1))
    else:
        tl.store(target, tl.load(source))


@case
def block_pointers_are_checked_too():
    x, out = torch.randn(10, 12), torch.zeros(10, 12)
    block_pointer_kernel[(1,)](x, out, 10, 12, B=16, CHECK=True)
    assert torch.equal(x, out)
    refused(OutOfBounds, ["load"], lambda: block_pointer_kernel[(1,)](x, out, 10, 12, B=16, CHECK=False))


@triton.jit
def inner_kernel(pointer, BLOCK: tl.constexpr):
    return tl.load(pointer + tl.arange(0, BLOCK))


@triton.jit
def outer_kernel(x, out, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), inner_kernel(x, BLOCK))


@case
def a_fault_in_a_called_function_keeps_its_kind():
    refused(OutOfBounds, ["load"], lambda: outer_kernel[(1,)](torch.zeros(8), torch.zeros(16), BLOCK=16))


# ------------------------------------------------------------------------------------------ order of programs


def in_every_order(call):
    for _ in range(3):
        next_order()
        call()


@triton.jit
def numbered_kernel(count, places):
    number = tl.load(count)
    tl.store(count, number + 1)
    tl.store(places + number, tl.program_id(0) + 4 * tl.program_id(1))


@case
def programs_run_in_another_order_each_time():
    seen = []

    def once():
        count, places = torch.zeros(1, dtype=torch.int32), torch.empty(12, dtype=torch.int32)
        numbered_kernel[(4, 3)](count, places)
        seen.append(places.tolist())

    in_every_order(once)
    assert all(sorted(places) == list(range(12)) for places in seen)
    assert len({tuple(places) for places in seen}) == 3
    assert [places[::-1] for places in seen if places[0] == 11] == [places for places in seen if places[0] == 0]


@triton.jit
def chain_kernel(y, flags, VOLATILE: tl.constexpr):
    program = tl.program_id(0)
    before = 0.0
    if program > 0:
        if VOLATILE:
            while tl.load(flags + program - 1, volatile=True) == 0:
                pass
        else:
            while tl.atomic_add(flags + program - 1, 0, sem="acquire") == 0:
                pass
        before = tl.load(y + program - 1)
    tl.store(y + program, before + 1.0)
    tl.atomic_xchg(flags + program, 1, sem="release")


@case
def programs_that_wait_for_others_go_on_when_those_are_done():
    def once(polls):
        y, flags = torch.empty(9), torch.zeros(9, dtype=torch.int32)
        chain_kernel[(9,)](y, flags, VOLATILE=polls)
        assert y.tolist() == list(range(1, 10))

    in_every_order(lambda: once(True))
    in_every_order(lambda: once(False))


@triton.jit
def barrier_kernel(arrived, y, ROUNDS: tl.constexpr):
    for i in tl.static_range(ROUNDS):
        tl.atomic_add(arrived, 1, sem="release")
        while tl.atomic_add(arrived, 0, sem="acquire") < (i + 1) * tl.num_programs(0):
            pass
    tl.store(y + tl.program_id(0), tl.load(arrived))


@case
def barriers_of_the_grid_can_be_run():
    def once():
        arrived, y = torch.zeros(1, dtype=torch.int32), torch.zeros(5, dtype=torch.int32)
        barrier_kernel[(5,)](arrived, y, ROUNDS=3)
        assert y.tolist() == [15] * 5

    in_every_order(once)


@triton.jit
def never_kernel(flag, y):
    while tl.atomic_add(flag, 0) == 0:
        pass
    tl.store(y + tl.program_id(0), 1)


@case
def waiting_for_what_never_comes_is_not_checkable():
    flag, y = torch.zeros(1, dtype=torch.int32), torch.zeros(3)
    refused(NotCheckable, ["wait for each other"], lambda: never_kernel[(3,)](flag, y))
    refused(NotCheckable, ["more than 64 programs"], lambda: never_kernel[(100,)](flag, torch.zeros(100)))
    add()


@triton.jit
def faulty_kernel(flag, y):
    if tl.program_id(0) == 2:
        tl.store(y + 3, 1)  # the first place behind it: further on, another tensor may be nearer
    while tl.atomic_add(flag, 0) == 0:
        pass


@case
def a_fault_ends_the_programs_that_wait():
    flag, y = torch.zeros(1, dtype=torch.int32), torch.zeros(3)
    in_every_order(lambda: refused(OutOfBounds, ["end of y"], lambda: faulty_kernel[(4,)](flag, y)))
    assert threading.active_count() == 1


# ------------------------------------------------------------------------------------------ not checkable


@triton.jit
def assembly_kernel(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    value = tl.load(x + at)
    result = tl.inline_asm_elementwise("add.f32 $0, $1, $1;", "=f,f", [value], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(out + at, result)


@case
def inline_assembly_is_not_checkable():
    refused(NotCheckable, ["inline assembly"], lambda: assembly_kernel[(1,)](torch.zeros(8), torch.zeros(8), N=8))


@triton.jit
def scaled_kernel(a, s, c, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    scales = tl.load(s + tl.arange(0, N)[:, None] * (N // 32) + tl.arange(0, N // 32)[None, :])
    left = tl.load(a + at)
    tl.store(c + at, tl.dot_scaled(left, scales, "e4m3", left, scales, "e4m3"))


@case
def scaled_products_are_not_checkable():
    a, s = torch.randn(64, 64).to(torch.float8_e4m3fn), torch.ones(64, 2, dtype=torch.uint8)
    refused(NotCheckable, ["dot_scaled"], lambda: scaled_kernel[(1,)](a, s, torch.empty(64, 64), N=64))


@triton.jit
def bf16_atomic_kernel(out):
    tl.atomic_add(out, tl.full((), 1.0, tl.bfloat16))


@case
def bf16_atomics_are_not_checkable():
    out = torch.zeros(1, dtype=torch.bfloat16)
    refused(NotCheckable, ["atomics"], lambda: bf16_atomic_kernel[(1,)](out))


@triton.jit
def rare_library_kernel(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, libdevice.nextafter(tl.load(x + at), 1.0))


@case
def a_library_function_outside_the_table_is_not_checkable():
    refused(NotCheckable, ["nextafter"], lambda: rare_library_kernel[(1,)](torch.zeros(8), torch.zeros(8), N=8))


@triton.jit
def made_pointer_kernel(addresses, out):
    pointer = tl.load(addresses).to(tl.pointer_type(tl.float32))
    tl.store(out, tl.load(pointer))


@case
def pointers_made_from_integers_are_not_checkable():
    target = torch.ones(1)
    addresses = torch.tensor([target.data_ptr()])
    refused(NotCheckable, ["pointers"], lambda: made_pointer_kernel[(1,)](addresses, torch.zeros(1)))


@triton.jit
def unknown_kernel(x, out):
    tl.store(out, tl.load(x) + tl.extra.cuda.num_threads())


@triton.jit
def twice(value):
    return value * 2


@triton.jit
def mapped_kernel(x, out):
    tl.store(out + tl.arange(0, 8), tl.map_elementwise(twice, tl.load(x + tl.arange(0, 8))))


@case
def a_builder_method_that_the_interpreter_lacks_is_not_checkable():
    refused(NotCheckable, ["not checkable"], lambda: mapped_kernel[(1,)](torch.zeros(8), torch.zeros(8)))


@case
def an_operation_that_the_interpreter_lacks_is_not_checkable():
    refused(NotCheckable, ["not checkable"], lambda: unknown_kernel[(1,)](torch.zeros(1), torch.zeros(1)))


# ------------------------------------------------------------------------------------------ the device


class ModelNew(torch.nn.Module):
    """A module as it would be written for a GPU."""

    def __init__(self, features):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(features, device="cuda"))
        self.register_buffer("shift", torch.zeros(features).cuda())

    def forward(self, x):
        assert x.is_cuda
        assert x.device == self.weight.device
        assert x.device.type == "cuda"
        assert torch.cuda.is_available()
        x = x.cuda().to("cuda").contiguous()
        with torch.cuda.device(x.device):
            out = torch.empty(x.shape, device=x.device, dtype=x.dtype)
            torch.zeros_like(out, device="cuda:0")
            processors = torch.cuda.get_device_properties(x.device).multi_processor_count
            assert processors == triton.runtime.driver.active.utils.get_device_properties(0)["multiprocessor_count"]
            add_kernel[(triton.cdiv(x.numel(), 64),)](x, x, out, x.numel(), BLOCK=64)
        torch.cuda.synchronize()
        return out + (self.weight * 0 + self.shift)


@case
def code_for_cuda_runs_on_the_cpu():
    x = torch.randn(10, 10)
    available = torch.cuda.is_available()
    with cuda_as_cpu():
        model = ModelNew(10).cuda().to("cuda:0")
        out = model(x.to(device="cuda"))
    assert out.device.type == "cpu"
    assert torch.equal(out, x + x)
    assert not x.is_cuda
    assert torch.cuda.is_available() == available


# ------------------------------------------------------------------------------------------ unneeded work


@triton.jit
def squares_kernel(out, factor):
    at = tl.arange(0, 8)
    tl.store(out + at, at * at * factor)


@case
def integers_wrap_around_and_no_operation_is_done_for_nothing():
    done, plain = [], engine.InterpreterBuilder.binary_op

    def counted(self, lhs, rhs, operation):
        done.append(operation.__name__)
        return plain(self, lhs, rhs, operation)

    out = torch.empty(8, dtype=torch.int32)
    engine.InterpreterBuilder.binary_op = counted
    try:
        squares_kernel[(1,)](out, 1 << 30)
    finally:
        engine.InterpreterBuilder.binary_op = plain
    assert done == ["multiply", "multiply"]
    assert torch.equal(out, (torch.arange(8, dtype=torch.int32) ** 2 * (1 << 30)))


@triton.jit
def largest_of(values):
    return tl.max(values, 0)


@triton.jit
def largest_and_sum_kernel(x, out):
    values = tl.load(x + tl.program_id(0) * 16 + tl.arange(0, 16))
    tl.store(out + tl.program_id(0), largest_of(values) + tl.sum(values, 0))


@case
def a_launch_leaves_the_language_as_it_was():
    holders = (tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base, tl.dtype)
    before = [dict(vars(holder)) for holder in holders]
    x, out = torch.randn(3, 16), torch.empty(3)
    for _ in range(2):
        largest_and_sum_kernel[(3,)](x, out)
        close(out, x.amax(1) + x.sum(1), 1e-6)
        assert [dict(vars(holder)) for holder in holders] == before


@triton.jit
def shapes_kernel(x, out, B: tl.constexpr):
    rows, columns = tl.arange(0, B)[:, None], tl.arange(0, 2 * B)[None, :]
    block = tl.load(x + rows * (2 * B) + columns)
    tl.static_assert(block.shape[0] == B)
    tl.static_assert(block.shape[1] == 2 * B)
    tl.static_assert(block.numel == 2 * B * B)
    tl.store(out + columns * B + rows, tl.trans(tl.trans(block)) + tl.reshape(block, (B, 2 * B)))


@case
def types_of_one_shape_are_told_apart_from_those_of_others():
    for size in (4, 2, 4):
        for dtype in (torch.float32, torch.int64, torch.float16):
            x = (torch.randn(size, 2 * size) * 9).to(dtype)
            out = torch.empty(2 * size, size, dtype=dtype)
            shapes_kernel[(1,)](x, out, B=size)
            assert torch.equal(out, (2 * x).T)


@case
def installing_twice_changes_nothing():
    install()
    add()


def main():
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="tl.make_block_ptr is deprecated")
    results = {}
    for function in CASES:
        torch.manual_seed(0)
        try:
            function()
            results[function.__name__] = "ok"
        except Exception:  # noqa: BLE001 - reported by name to the test that reads it
            results[function.__name__] = traceback.format_exc()[-1500:]
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
