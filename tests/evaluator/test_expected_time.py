"""The expected time of a Triton candidate: its facts, with no device, and what a model says of them."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
import torch
from referee_small_problems import SOFTMAX_KERNEL

from kernelwright.evaluator.builds.gpu_resources import access_bytes, parse_machine_code
from kernelwright.evaluator.profile.expected import (
    EXPECTED,
    H100,
    KernelFacts,
    OperatorFacts,
    expected_us,
    facts_from,
    facts_of,
    limits_us,
    order,
)
from kernelwright.evaluator.worker.triton.steps import Steps
from kernelwright.evaluator.worker.triton.work import crossed_share, work_of
from kernelwright.records import Candidate, KernelResources

PROBLEM = """
import torch
import torch.nn as nn

PROBLEM = {"category": "matmul", "inputs": {}, "variants": {"interpreter": [{}]}}


class Model(nn.Module):
    def forward(self, x, w):
        return torch.relu(x @ w).cumsum(1)


def get_inputs():
    return [torch.randn(512, 1024), torch.randn(1024, 256)]


def get_init_inputs():
    return []
"""
CANDIDATE = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def product_kernel(x, w, out, depth, columns, B: tl.constexpr):
    rows = tl.program_id(0) * B + tl.arange(0, B)
    across = tl.program_id(1) * B + tl.arange(0, B)
    total = tl.zeros((B, B), dtype=tl.float32)
    for start in range(0, depth, B):
        along = start + tl.arange(0, B)
        left = tl.load(x + rows[:, None] * depth + along[None, :])
        right = tl.load(w + along[:, None] * columns + across[None, :])
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(out + rows[:, None] * columns + across[None, :], total)


@triton.jit
def relu_kernel(x, out, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, tl.maximum(tl.load(x + at), 0.0))


class ModelNew(nn.Module):
    def forward(self, x, w):
        y = torch.empty(512, 256, device=x.device)
        product_kernel[(16, 8)](x, w, y, 1024, 256, B=32)
        relu_kernel[(128,)](y, y, B=1024)
        relu_kernel[(128,)](y, y, B=1024)
        return y.cumsum(1)
"""
SOFTMAX = f"""{SOFTMAX_KERNEL}

class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
"""


def kernel(**known):
    plain = {"kernel": "k", "programs": 8192, "threads": 128, "resident": 10, "instructions": 300, "shared_bytes": 0}
    plain |= {"crossed": 0.0, "spilled_bytes": 0, "waits": 1.0, "matrix_flops": 0.0}
    plain |= {"bytes_read": 134e6, "bytes_written": 134e6, "bytes_asked": 268e6}
    return KernelFacts(**{**plain, **known})


@pytest.fixture(scope="module")
def facts():
    code = "import json, sys; from kernelwright.evaluator.worker.triton.facts import facts; "
    code += "json.dump(facts(json.load(sys.stdin)), sys.stdout)"
    payload = {"problem": PROBLEM, "variant": {}, "mode": "eval", "architectures": [90]}
    payload["sources"] = [
        CANDIDATE,
        CANDIDATE.replace("1024, 256, B=32", "1024, 256, B=64").replace("(16, 8)", "(8, 4)"),
    ]
    asked = [sys.executable, "-c", code]
    done = subprocess.run(asked, input=json.dumps(payload), capture_output=True, text=True, check=True)
    return [facts_from(found) for found in json.loads(done.stdout)["candidates"]]


def test_every_step_of_a_forward_has_its_work(facts):
    product, relu, again, library = facts[0]
    assert (product.kernel, product.programs, product.threads) == ("product_kernel", 128, 128)
    x, w, y = 4 * 512 * 1024, 4 * 1024 * 256, 4 * 512 * 256
    assert (product.bytes_read, product.bytes_written) == (x + w, y), "each tensor counts once"
    assert product.bytes_asked == 8 * x + 16 * w + y, "and is asked for by every program that needs it"
    assert product.waits == 32 / 3, "the trips of its loop, whose loads are three stages ahead"
    multiplications = 512 * 256 * 1024 / (128 * 128)
    assert multiplications < product.instructions < 3 * multiplications
    assert product.shared_bytes > 0
    assert (relu.bytes_read, relu.bytes_written, relu.waits) == (y, y, 1)
    assert again == relu, "a launch that comes again is a step again"
    assert library == OperatorFacts("cumsum", 2.0 * y, 0.0, 32)
    larger = facts[1][0]
    assert larger.programs == 32
    assert larger.bytes_asked < product.bytes_asked


LOOP = """
  tt.func public @f(%x: !tt.ptr<f32>, %n: i32, %y: !tt.ptr<f32>) attributes {noinline = false} {
    %c0 = arith.constant 0 : i32
    %c64 = arith.constant 64 : i32
    %row = tt.get_program_id x : i32
    %first = arith.muli %row, %c64 : i32
    %at = tt.splat %x : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %sum = scf.for %k = %first to %n step %c64 iter_args(%acc = %zero) -> (tensor<64xf32>)  : i32 {
      %v = tt.load %at : tensor<64x!tt.ptr<f32>>
      %w = tt.load %at : tensor<64x!tt.ptr<f32>>
      %next = arith.addf %acc, %v : tensor<64xf32>
      scf.yield %next : tensor<64xf32>
    }
    %to = tt.splat %y : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    tt.store %to, %sum : tensor<64x!tt.ptr<f32>>
    tt.return
  }
"""


def test_loops_whose_trips_depend_on_the_program_are_followed():
    found = work_of(LOOP, {"n": 6 * 64}, {"x": 1000, "y": 64 * 4}, [6])
    assert found.trips == pytest.approx((5 + 3 + 1) / 3), "the programs 1, 3 and 5 of 6"
    assert found.waits == found.trips, "two loads of one piece of code wait together"
    assert found.bytes_asked == 6 * (3 * 2 * 256 + 256)
    assert (found.bytes_read, found.bytes_written) == (1000, 256), "no more than there is"
    unknown = work_of(LOOP, {}, {"x": 1000, "y": 256}, [6])
    assert unknown.trips == 1.0


PRODUCT = """
  tt.func public @f(%x: !tt.ptr<f32>) attributes {{noinline = false}} {{
    %d = tt.dot %a, %b, %c{precision} : tensor<64x32x{kind}> * tensor<32x16x{kind}> -> tensor<64x16xf32>
    tt.return
  }}
"""


@pytest.mark.parametrize(
    ("kind", "precision", "times"),
    [("bf16", "tf32", 1), ("f32", "ieee", 0), ("f32", "tf32", 2), ("f32", "tf32x3", 6), ("f32", "bf16x6", 6)],
)
def test_products_of_wider_types_take_matrix_units_longer(kind, precision, times):
    text = PRODUCT.format(kind=kind, precision=f", inputPrecision = {precision}")
    assert work_of(text, {}, {"x": 4}, [3]).matrix_flops == times * 3 * 2 * 64 * 32 * 16


def test_a_view_is_no_step():
    steps, x = Steps(), torch.ones(4, 6)
    with steps.watching():
        torch.ops.aten._unsafe_view(x, [2, 12]).exp()
    assert [step["operator"] for step in steps.steps] == ["exp"]


LAYOUT = """#blocked = #ttg.blocked<{{sizePerThread = [4, 4], threadsPerWarp = [2, 16], warpsPerCTA = [4, 1], order = [1, 0]}}>
#shared1 = #ttg.swizzled_shared<{{vec = 1, perPhase = 1, maxPhase = 1, order = {order}}}>
  %r = ttg.local_load %m : !ttg.memdesc<32x64xf32, #shared1, #smem> -> tensor<32x64xf32, #ttg.dot_op<{{opIdx = 1, parent = #blocked}}>>
  %d = tt.dot %l, %r, %a : tensor<64x32xf32, #b> * tensor<32x64xf32, #c> -> tensor<64x64xf32, #blocked>
"""  # noqa: E501


def test_a_right_operand_that_lies_along_the_depth_collides_in_the_banks():
    assert crossed_share(LAYOUT.format(order="[1, 0]")) == 0.0
    assert crossed_share(LAYOUT.format(order="[0, 1]")) == 4 / (8 + 4), "a thread has 8 x 4 of the result"


LISTING = """
.text.f:
        /*0000*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
.L_x_1:
        /*0010*/                   LDG.E.64 R4, desc[UR4][R2.64] ;
        /*0020*/                   FFMA R4, R4, R5, R6 ;
        /*0030*/              @!P0 BRA `(.L_x_1) ;
        /*0040*/                   LDS.128 R4, [R2] ;
.L_x_2:
        /*0050*/                   BRA `(.L_x_2);
"""


def test_loops_are_found_in_machine_code():
    found = parse_machine_code(LISTING)["f"]
    assert (found.looped, found.looped_bytes, found.shared_accesses) == (3, 8, {"LDS.128": 1})
    widths = {"LDG.E.128": 16, "LDG.E": 4, "LDG.E.U16": 2, "LDS.U.8": 1, "LDSM.16.M88.4": 16, "STS": 4}
    assert {name: access_bytes(name) for name in widths} == widths


def test_a_loop_that_is_unrolled_counts_by_what_it_loads():
    used = KernelResources(
        kernel="k", architecture="sm_90", registers=32, instructions=100, looped_instructions=80, looped_bytes=64,
        shared_accesses={"LDS": 1}, block=128, blocks_per_processor=8, occupancy=0.5,
    )  # fmt: skip
    work = {"bytes_read": 1.0, "bytes_written": 1.0, "bytes_asked": 4 * 128 * 128.0, "matrix_flops": 0.0}
    work |= {"waits": 8.0, "trips": 8.0, "crossed": 0.0}
    step = {"launch": 0, "grid": [4], "work": work}
    (found,) = facts_of([step], {0: used})
    assert (found.programs, found.instructions, found.shared_bytes) == (4, 180, 7), "two passes, not eight"
    assert facts_of([step], {}) is None
    assert facts_of([{"launch": 0}], {0: used}) is None, "a launch without work is not known"
    assert facts_of([step], {0: used.model_copy(update={"problem": "too large"})}) is None
    assert facts_of([{**step, "grid": [float("nan")]}], {0: used}) is None
    assert facts_of([], {}) is None


@pytest.mark.parametrize(
    ("change", "bound"),
    [
        ({}, "memory"),
        ({"bytes_asked": 1e11}, "caches"),
        ({"instructions": 1e5}, "instructions"),
        ({"shared_bytes": 1e6}, "shared memory"),
        ({"matrix_flops": 1e13}, "matrix units"),
        ({"spilled_bytes": 4000}, "spills"),
        ({"programs": 1, "waits": 1e4}, "waiting"),
    ],
)
def test_every_limit_can_be_the_longest_and_says_why(change, bound):
    plain = expected_us((kernel(),))
    found = expected_us((kernel(**change),))
    assert found.bound == bound
    assert found.reason.startswith(f"{bound}: ")
    assert "multiprocessors" in found.reason
    assert found.us >= plain.us
    assert found.us >= max(limits_us(kernel(**change), H100).values())


def test_the_sentence_names_the_slowest_step():
    memory = expected_us((kernel(),))
    assert memory.reason == f"memory: 268 MB at {H100.memory_tb_s:.1f} TB/s, 6.2 waves of 132 multiprocessors"
    two = expected_us((kernel(kernel="small", bytes_read=1e6, bytes_written=1e6, bytes_asked=2e6), kernel()))
    assert two.reason.startswith("k takes ")
    assert expected_us((OperatorFacts("cumsum", 1e9, 0.0, 32),)).bound == "library"
    assert expected_us(()).bound == "launches"
    tiny = kernel(programs=1, bytes_read=4.0, bytes_written=4.0, bytes_asked=8.0, instructions=10)
    assert expected_us((tiny,) * 3).bound == "launches"


def test_schedules_that_cannot_be_told_apart_stay_in_their_order():
    one, same, better = kernel(), kernel(instructions=301), kernel(bytes_read=50e6)
    assert order([(one,), (same,), (better,)]) == [2, 0, 1]
    assert order([(same,), (one,)]) == [0, 1]
    more_waves = dataclasses.replace(one, resident=1)
    assert expected_us((more_waves,)).us > expected_us((one,)).us


@pytest.mark.untimed
def test_an_untimed_verdict_shows_what_a_model_expects_and_claims_no_time(softmax):
    source = SOFTMAX
    verdict = softmax.judge(Candidate(problem_id=softmax.problem.id, source=source, backend="triton")).verdict
    assert verdict.passed, verdict.reason
    assert verdict.timing is None
    assert verdict.speedup() is None
    expected = verdict.profile.metrics["expected_us"]
    assert 0 < expected < 1e4
    note = next(note for note in verdict.profile.notes if note.startswith(EXPECTED))
    assert f"{expected:.0f} us a forward on an H100; " in note
