"""Triton candidates of the generator, run in the corrected interpreter: a script, because that takes a whole process.

Prints one JSON object: the name of each case, and "ok" or what went wrong.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import traceback
from pathlib import Path
from unittest import mock

from kernelwright.evaluator.worker.triton.interpreter import install

install()

import torch  # noqa: E402
from conftest import Built, problem  # noqa: E402
from test_codegen_operators import (  # noqa: E402
    BINARY,
    CONVS,
    LOSSES,
    POOLS,
    PRODUCTS,
    REDUCTIONS,
    SPECIAL,
    UNARY,
    VIEWS,
)

from kernelwright.codegen import _triton_tiles, schedule_space  # noqa: E402
from kernelwright.datasets import load_suite  # noqa: E402

CASES = {}
FOLDER = Path(tempfile.mkdtemp())
SMALL = {"TILE": 1024, "BLOCK": 256, "COLUMNS": 16, "rows": "blocks"}


def case(function):
    CASES[function.__name__] = function
    return function


def imported(text):
    """A candidate's text as a module with a file of its own: Triton reads the source of its functions."""
    path = FOLDER / f"candidate_{len(list(FOLDER.iterdir()))}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Candidate(Built):
    """A Triton candidate, imported from a file."""

    backend = "triton"

    def load(self):
        return imported(self.generated.source)

    def in_torch(self):
        """The operators that stay torch calls."""
        return [entry["name"] for entry in self.generated.report if entry["kind"] == "torch"]


def build(forward, inputs, schedule=None, variants=None, **more):
    return Candidate(problem(forward, inputs, **more), schedule or {}, variants)


def returned(expressions):
    return "return (" + ", ".join(expressions) + ",)"


# ------------------------------------------------------------------------------------------------ pointwise


@case
def unary_operators():
    built = build(returned(UNARY), "torch.randn(7, 37) * 2")
    assert not built.in_torch()
    built.check()
    torch.manual_seed(1)
    built.check(inputs=[torch.randn(7, 37) * 1e-4])


@case
def special_values():
    names = ["x.exp()", "x.relu()", "x.tanh()", "x.sigmoid()", "x.clamp(-1, 1)", "torch.erf(x)", "x.log()", "x.sqrt()",
             "F.silu(x)", "x.abs()", "F.leaky_relu(x)", "F.hardtanh(x)", "F.softplus(x)", "F.mish(x)",
             "torch.maximum(x, -x)"]  # fmt: skip
    built = build(returned(names), "torch.randn(5, 12)")
    reference, candidate, _ = built.models({})
    x = torch.tensor(SPECIAL).repeat(5, 1)
    for mine, true in zip(candidate(x), reference(x), strict=True):
        torch.testing.assert_close(mine, true, rtol=2e-6, atol=1e-7, equal_nan=True)


@case
def binary_operators_and_broadcasting():
    init = "self.w = nn.Parameter(torch.tensor([0.3]))"
    built = build("# x y z\n" + returned(BINARY), "torch.randn(6, 21), torch.randn(6, 21), torch.randn(21)", init=init)
    built.check()


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
    built = build("return torch.ones(4) * 2, torch.arange(5) + 1, torch.zeros(2, 3)", "torch.randn(2)")
    assert "device=x.device" in built.generated.source
    built.check()


@case
def axes_of_one_element_are_reduced():
    """As in a largest value that is kept as a column, and centred over that column."""
    body = "m = x.amax(1, keepdim=True)\nreturn F.gelu(m - m.mean(1, keepdim=True)), m.logsumexp(1)"
    build(body, "torch.randn(9, 20)").check()
    for rows in ("whole", "blocks"):
        build("return x[:1, :1].sum(), x[:1, :1].softmax(1)", "torch.randn(9, 20)", {"rows": rows}).check()


@case
def operators_without_a_template_stay_in_torch():
    built = build("return x.sort(1)[0].exp(), torch.cdist(x, x).softmax(-1), x.argmax()", "torch.randn(4, 5)")
    assert {"sort.default", "cdist.default", "argmax.default"} == set(built.in_torch())
    built.check()


@case
def views():
    build(returned(VIEWS), "torch.randn(4, 6, 10)").check()


@case
def inputs_that_are_not_contiguous():
    built = build("return x.exp() + 1", "torch.randn(6, 9)")
    built.check(inputs=[torch.randn(9, 6).t()])


@case
def integers_and_masks():
    forward = (
        "# x m i\nreturn (i * 2 + 1, (i % 5).float() * x, x.masked_fill(m, 0.0), m & (x > 0), i.sum(-1), x[i[0] % 3])"
    )
    built = build(forward, "torch.randn(6, 9), torch.rand(6, 9) > 0.5, torch.randint(-9, 9, (6, 9))")
    built.check()


# ------------------------------------------------------------------------------------------------ reductions


def _reductions(schedule):
    built = build(returned(REDUCTIONS), "torch.randn(5, 9, 33)", schedule)
    assert not built.in_torch()
    built.check()


@case
def reductions():
    _reductions({})


@case
def reductions_block_by_block():
    _reductions(SMALL)


@case
def reductions_of_rows_longer_than_a_block():
    forward = returned(["x.softmax(-1)", "x.argmax(-1)", "x.amin(-1)", "x.var(-1)", "F.layer_norm(x, (2500,))",
                        "x.prod(-1)", "x.logsumexp(1)", "(x > 3).any(-1)", "x.cumsum(-1)", "x.mean()"])  # fmt: skip
    built = build(forward, "torch.randn(3, 2500) + 1", SMALL)
    built.check()
    x = torch.randn(3, 2500)
    x[0, 2100], x[1, 7], x[1, 1900], x[2] = float("nan"), float("inf"), float("nan"), -float("inf")
    reference, candidate, _ = built.models({})
    assert torch.equal(candidate(x)[1], reference(x)[1])


@case
def reductions_propagate_nan():
    forward = "return x.amax(-1), x.amin(0), x.argmax(-1), x.argmin(1), x.amax(), x.softmax(-1), x.max(1).values"
    x = torch.randn(3, 4, 17)
    x[1, 2, 5], x[0, 0, 3], x[2, 1, :] = float("nan"), float("inf"), -float("inf")
    for schedule in ({}, SMALL):
        build(forward, "torch.randn(3, 4, 17)", schedule).check(inputs=[x])


@case
def normalisations_on_hard_data():
    forward = (
        "return F.layer_norm(x, (x.shape[-1],)), F.softmax(x, -1), F.log_softmax(x, 1), "
        "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)"
    )
    for schedule in ({}, SMALL):
        built = build(forward, "torch.randn(4, 11, 65)", schedule)
        for x in (torch.randn(4, 11, 65) + 1000, torch.randn(4, 11, 65) * 1e4, torch.full((4, 11, 65), 3.0)):
            built.check(inputs=[x])


@case
def losses():
    inputs = "torch.randn(37, 19), torch.randn(37, 19), torch.randint(0, 19, (37,))"
    built = build("# x y t\n" + returned(LOSSES), inputs)
    assert not built.in_torch()
    built.check()


@case
def totals_have_the_same_bits_every_time():
    built = build("return F.mse_loss(x, x * 0.5)", "torch.randn(300, 100)", {"TILE": 1024})
    _, candidate, (x,) = built.models({})
    assert torch.equal(candidate(x), candidate(x))
    built.check()


@case
def running_sums_and_products():
    expressions = [
        "x.cumsum(-1)",
        "x.cumsum(0)",
        "x.cumsum(1)",
        "(x * 0.1 + 1).cumprod(-1)",
        "(x * 0.1 + 1).cumprod(1)",
    ]
    for schedule in ({}, {"TILE": 1024, "COLUMNS": 128}):
        built = build(returned(expressions), "torch.randn(3, 70, 33)", schedule)
        assert not built.in_torch()
        built.check(slack=8.0)


# ------------------------------------------------------------------------------------------------ windows, products


@case
def pooling():
    built = build(returned(POOLS), "torch.randn(2, 3, 12, 15)")
    assert not built.in_torch()
    built.check()
    x = torch.randn(2, 3, 12, 15)
    x[0, 1, 4, 4], x[1, 0, 0, :] = float("nan"), -float("inf")
    built.check(inputs=[x])


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
    built = build("return x @ x.mT", "torch.randn(40, 50)")
    assert 'input_precision="ieee"' in built.generated.source
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
    forward = (
        "# x w y\nh = x @ w\nreturn (F.gelu(x) * y + 1, x.softmax(-1), F.layer_norm(x, (48,)), x.sum(0), x.amax(-1), "
        "h.relu(), x.float().mean(), x.argmax(-1), x.cumsum(-1), x > y, x + y.float())"
    )
    for name in ("float16", "bfloat16"):
        half = f".to(torch.{name})"
        inputs = f"torch.randn(20, 48){half}, torch.randn(48, 33){half}, torch.randn(20, 48){half}"
        for schedule in ({}, SMALL):
            built = build(forward, inputs, schedule)
            assert not built.in_torch()
            reference, candidate, given = built.models({})
            eager = reference(*given)
            exact = reference(*(i.double() for i in given))
            for mine, low, true in zip(candidate(*given), eager, exact, strict=True):
                assert mine.dtype == low.dtype
                assert mine.shape == low.shape
                if not mine.is_floating_point():
                    assert torch.equal(mine, low)
                    continue
                error, allowed = ((t.double() - true).norm() for t in (mine, low))
                assert error <= 1.05 * allowed + 1e-6 * true.norm()


@case
def float64_is_computed_in_float64():
    forward = returned(
        ["x.exp() * 0.1", "F.gelu(x)", "x.softmax(-1)", "x.sqrt()", "x.mean()", "torch.log1p(x)", "x**1.7"]
    )
    built = build(forward, "torch.rand(6, 40, dtype=torch.float64)")
    reference, candidate, given = built.models({})
    for mine, true in zip(candidate(*given), reference.double()(*given), strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-14, atol=1e-15)


# ------------------------------------------------------------------------------------------------ shapes, schedules


@case
def shape_variants_share_one_candidate():
    variants = [{"R": 7, "C": 33}, {"R": 4, "C": 2}, {"R": 3, "C": 130}]
    built = build(
        "return F.layer_norm(x, (x.shape[-1],)), x.sum(0), (x @ x.mT).relu(), x.mean(), x[:, :1] / x.shape[0]",
        "torch.randn(R, C)",
        constants="R = 7\nC = 33",
        variants=variants,
    )
    for variant in variants:
        built.check(variant)


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


def _built_in(item):
    def check():
        variants = item.meta.variants_for("interpreter")
        built = Candidate(item.source, {}, [*item.meta.variants_for("gpu")[1:], *variants])
        assert [r for r in built.generated.report if r["kind"] != "torch"]
        for variant in variants:
            built.check(variant)

    return check


for _item in load_suite("kernelwright"):
    CASES[_item.id.removeprefix("kernelwright/")] = _built_in(_item)


def main():
    wanted = sys.argv[1:]
    results = {}
    for name, function in CASES.items():
        if wanted and name not in wanted:
            continue
        torch.manual_seed(0)
        try:
            with torch.no_grad():
                function()
            results[name] = "ok"
        except Exception:  # noqa: BLE001 - reported by name to the test that reads it
            results[name] = traceback.format_exc()[-1500:]
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
