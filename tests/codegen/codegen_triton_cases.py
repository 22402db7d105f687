"""Triton candidates of the generator, run in the corrected interpreter: a script, because that takes a whole process.

Prints one JSON object: the name of each case, and "ok" or what went wrong.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import ClassVar
from unittest import mock

import torch
from codegen_cases import Emitted, cases_with, halves, main, reductions_of_long_rows, returned
from conftest import problem
from test_codegen_operators import CONVS, PRODUCTS

from kernelwright.codegen import _triton_tiles, schedule_space
from kernelwright.evaluator.worker.triton.interpreter import install

install()
FOLDER = Path(tempfile.mkdtemp())


def imported(text):
    """A candidate's text as a module with a file of its own: Triton reads the source of its functions."""
    path = FOLDER / f"candidate_{len(list(FOLDER.iterdir()))}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Candidate(Emitted):
    """A Triton candidate, imported from a file."""

    backend = "triton"
    small: ClassVar = {"TILE": 1024, "BLOCK": 256, "COLUMNS": 16, "rows": "blocks"}
    scans: ClassVar = {"TILE": 1024, "COLUMNS": 128}

    def load(self):
        return imported(self.generated.source)


build, case = Candidate.build, cases_with(Candidate)


# ------------------------------------------------------------------------------------------------ pointwise


@case
def gelu_does_not_cancel_below_zero():
    built = build("return F.gelu(x)", "torch.randn(64, 64)")
    x = torch.linspace(-5, 5, 4096).reshape(64, 64)
    _, candidate, _ = built.models({})
    true = torch.nn.functional.gelu(x.double())
    error = (candidate(x).double() - true).abs()
    assert error.max() < 1e-6
    assert (error / true.abs()).max() < 0.03, "half an ulp of 1 is a tenth of gelu(-5) / -5, and eager has up to that"


@case
def what_is_made_of_nothing_is_on_the_inputs_device():
    expressions = ["torch.ones(4) * 2", "torch.arange(5) + 1", "torch.zeros(2, 3)", "torch.zeros(3, dtype=torch.bool)"]
    built = build(returned(expressions), "torch.randn(2)")
    assert "device=x.device" in built.generated.source
    built.check()


@case
def operators_without_a_template_stay_in_torch():
    built = build("return x.sort(1)[0].exp(), torch.cdist(x, x).softmax(-1), x.argmax()", "torch.randn(4, 5)")
    assert {"sort.default", "cdist.default", "argmax.default"} == set(built.in_torch())
    built.check()


@case
def inputs_that_are_not_contiguous():
    built = build("return x.exp() + 1", "torch.randn(6, 9)")
    built.check(inputs=[torch.randn(9, 6).t()])


# ------------------------------------------------------------------------------------------------ reductions


@case
def reductions_of_rows_longer_than_a_block():
    reductions_of_long_rows(Candidate, Candidate.small)


@case
def totals_have_the_same_bits_every_time():
    built = build("return F.mse_loss(x, x * 0.5)", "torch.randn(300, 100)", {"TILE": 1024})
    _, candidate, (x,) = built.models({})
    assert torch.equal(candidate(x), candidate(x))
    built.check()


# ------------------------------------------------------------------------------------------------ windows, products


@case
def pooling_in_one_and_three_dims():
    forward = "# x y\n" + returned(["F.max_pool1d(x, 3, 2, 1)", "F.avg_pool1d(x, 4)", "F.max_pool3d(y, 2)",
                                    "F.avg_pool3d(y, 3, 1, 1, count_include_pad=False)",
                                    "F.adaptive_avg_pool1d(x, 5)", "F.adaptive_avg_pool3d(y, 1)"])  # fmt: skip
    built = build(forward, "torch.randn(2, 3, 20), torch.randn(2, 3, 6, 7, 8)")
    assert not built.in_torch()
    built.check()


PARAMETERS = """
self.w = nn.Parameter(torch.randn(53, 37))
self.b = nn.Parameter(torch.randn(53))
self.m = nn.Parameter(torch.randn(37, 53))
self.v = nn.Parameter(torch.randn(37))
"""


@case
def matrix_products():
    for schedule in ({}, {"BLOCK_M": 32, "BLOCK_N": 128, "BLOCK_K": 16, "GROUP_M": 1}, {"gemm": "library"}):
        built = build(returned(PRODUCTS), "torch.randn(3, 53, 37)", schedule, init=PARAMETERS)
        assert ("own_matmul" in {r["kind"] for r in built.generated.report}) == ("gemm" not in schedule)
        built.check()


@case
def products_of_float32_keep_its_precision():
    for schedule, precision in (({}, "tf32x3"), ({"precision": "ieee"}, "ieee")):
        built = build("return x @ x.mT", "torch.randn(40, 50)", schedule)
        assert f'input_precision="{precision}"' in built.generated.source
        built.check()


@case
def epilogues_are_done_on_the_accumulators():
    built = build("# x r\nreturn F.gelu(F.linear(x, self.w, self.b) * 0.5 + r)",
                  "torch.randn(2, 9, 37), torch.randn(2, 9, 53)", init=PARAMETERS)  # fmt: skip
    assert [r["kind"] for r in built.generated.report] == ["own_matmul"]
    built.check()


@case
def convolutions():
    init = "self.w = nn.Parameter(torch.randn(11, 6, 3, 3))\nself.b = nn.Parameter(torch.randn(11))\n"
    init += "self.p = nn.Parameter(torch.randn(9, 6, 1, 1))\nself.g = nn.Parameter(torch.randn(6, 2, 3, 3))"
    for schedule, left in (({"conv": "library"}, len(CONVS)), ({"conv": "own"}, 1)):  # one has groups
        built = build(returned(CONVS), "torch.randn(2, 6, 13, 17)", schedule, init=init)
        assert len(built.in_torch()) == left
        built.check()


@case
def a_convolution_alone_is_a_kernel_by_default():
    init = "self.w = nn.Parameter(torch.randn(11, 6, 3, 3))\nself.b = nn.Parameter(torch.randn(11))\n"
    alone = build(returned(CONVS[1:2]), "torch.randn(2, 6, 13, 17)", init=init)
    assert [r["kind"] for r in alone.generated.report] == ["own_conv"]
    alone.check()
    followed = build("return F.conv2d(x, self.w).relu().mean((2, 3))", "torch.randn(2, 6, 13, 17)", init=init)
    assert len(followed.in_torch()) == 1
    followed.check()


@case
def attention():
    forward = "# q k v\nreturn F.scaled_dot_product_attention(q, k, v, is_causal=True)"
    inputs = ", ".join(["torch.randn(2, 3, 20, 16)"] * 3)
    for schedule in ({}, {"attention": "library"}):
        build(forward, inputs, schedule).check()


# ------------------------------------------------------------------------------------------------ half types


@case
def half_types():
    for schedule in ({}, Candidate.small):
        assert not any(built.in_torch() for built in halves(Candidate, schedule))


# ------------------------------------------------------------------------------------------------ shapes, schedules


@case
def large_tensors_are_indexed_with_64_bits():
    forward = "return x.exp(), x.softmax(-1), x.sum(1), x.argmax(-1), x.cumsum(1), x @ x.mT, F.max_pool2d(x, 2)"
    with mock.patch.object(_triton_tiles, "LARGE", 3000):
        built = build(forward, "torch.randn(3, 34, 33)", {"rows": "blocks"})
    assert built.generated.source.count("tl.program_id(0)") == 7
    assert built.generated.source.count("tl.program_id(0).to(tl.int64)") == 7
    assert ".to(tl.int64)" not in build("return x.exp()", "torch.randn(4, 5)").generated.source
    built.check()


@case
def fast_math_is_right_where_the_interpreter_can_tell():
    built = build(returned(["x.exp()", "x.softmax(-1)", "F.silu(x)"]), "torch.randn(7, 37)", {"fast_math": True})
    assert "tl.exp(" in built.generated.source
    assert "libdevice.exp(" not in built.generated.source
    built.check()


@case
def every_choice_of_a_schedule_is_right():
    source = problem(
        "y = F.linear(x, self.w, self.b).softmax(-1)\n"
        "return y, y.sum(0), F.mse_loss(y, y * 0.5), F.max_pool2d(y[None], 2)",
        "torch.randn(19, 37)",
        init=PARAMETERS,
    )
    space = schedule_space(Candidate(source, {}).graph, backend="triton")
    assert {"fusion", "gemm", "rows", "BLOCK", "TILE", "BLOCK_M", "GEMM_STAGES"} <= set(space)
    for name, values in space.items():
        for value in values[1:]:
            built = Candidate(source, {name: value})
            assert built.generated.knobs[name] == value
            built.check()


if __name__ == "__main__":
    main(case)
