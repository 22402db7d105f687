"""CUDA candidates of the generator, run in the emulator: a script, because its hooks belong to a whole process.

Its arguments are the names of cases. Prints one JSON object: the name of each, and "ok" or what went wrong.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import traceback
import types
from pathlib import Path
from unittest import mock

import torch
from conftest import Built, problem
from test_codegen_gradients import CASES as GRADIENTS
from test_codegen_gradients import captured, compare, models
from test_codegen_operators import BINARY, LOSSES, POOLS, REDUCTIONS, SPECIAL, UNARY, VIEWS

from kernelwright import inline
from kernelwright.codegen import _cuda_schedule, _triton_tiles, generate, schedule_space
from kernelwright.datasets import load_suite
from kernelwright.evaluator.builds.emulation import EmulatorLibrary, emulated_source, emulator_command
from kernelwright.evaluator.worker.triton.interpreter import cuda_as_cpu
from kernelwright.inline import emulation

CASES = {}
FOLDER = Path(tempfile.mkdtemp())
ROW = "self.b = nn.Parameter(torch.randn(37))"
SMALL = {"rows": "blocks", "REDUCE_BLOCK": 128, "ROW_ITEMS": 1, "VECTOR": 2, "COLUMNS": 16}
PROBLEMS = {p.id.removeprefix("kernelwright/"): p for p in load_suite("kernelwright")}


def build_product(request):
    """Compile as the referee's builder does."""
    out = FOLDER / f"{request.key}.so"
    if not out.exists():
        source = out.with_suffix(".cpp")
        source.write_text(emulated_source(request))
        done = subprocess.run(emulator_command(request, str(source), str(out)), capture_output=True, text=True)
        if done.returncode:
            raise inline.BuildError("the build failed", log=done.stderr)
    return str(out)


def case(function):
    CASES[function.__name__] = function
    return function


class Candidate(Built):
    """A CUDA candidate in the emulator."""

    backend = "cuda"

    def load(self):
        with cuda_as_cpu():
            return super().load()

    def _compare(self, *arguments):
        with cuda_as_cpu():
            return super()._compare(*arguments)

    def in_torch(self):
        """The operators that stay torch calls."""
        return [entry["name"] for entry in self.generated.report if entry["kind"] == "torch"]


def build(forward, inputs, schedule=None, variants=None, **more):
    return Candidate(problem(forward, inputs, **more), schedule or {}, variants)


def returned(expressions):
    return "return (" + ", ".join(expressions) + ",)"


# ------------------------------------------------------------------------------------------------ pointwise


@case
def a_chain_over_a_row_of_weights():
    build("return torch.relu(x * 2 + self.b)", "torch.randn(7, 37)", init=ROW).check()


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
    with cuda_as_cpu():
        made = candidate(x)
    for mine, true in zip(made, reference(x), strict=True):
        torch.testing.assert_close(mine, true, rtol=2e-6, atol=1e-7, equal_nan=True)


@case
def binary_operators_and_broadcasting():
    init = "self.w = nn.Parameter(torch.tensor([0.3]))"
    inputs = "torch.randn(6, 21), torch.randn(6, 21), torch.randn(21)"
    build("# x y z\n" + returned(BINARY), inputs, init=init).check()


@case
def views():
    build(returned(VIEWS), "torch.randn(4, 6, 10)").check()


@case
def integers_and_masks():
    forward = (
        "# x m i\nreturn (i * 2 + 1, (i % 5).float() * x, x.masked_fill(m, 0.0), m & (x > 0), i.sum(-1), x[i[0] % 3])"
    )
    build(forward, "torch.randn(6, 9), torch.rand(6, 9) > 0.5, torch.randint(-9, 9, (6, 9))").check()


@case
def inputs_that_are_not_aligned():
    """A slice of a longer tensor begins anywhere. So does a row of 37 numbers."""
    built = build("return x.exp(), x.softmax(-1)", "torch.randn(3, 36)")
    built.check(inputs=[torch.randn(109)[1:].view(3, 36)])
    build("return x.exp()", "torch.randn(36, 3)").check(inputs=[torch.randn(3, 36).t()])


@case
def axes_of_one_element_are_reduced():
    body = "m = x.amax(1, keepdim=True)\nreturn F.gelu(m - m.mean(1, keepdim=True)), m.logsumexp(1)"
    build(body, "torch.randn(9, 20)").check()
    build("return x[:1, :1].sum(), x[:1, :1].softmax(1)", "torch.randn(9, 20)").check()


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
def rows_longer_than_a_block_takes_at_once():
    forward = returned(["x.softmax(-1)", "x.argmax(-1)", "x.amin(-1)", "x.var(-1)", "F.layer_norm(x, (2500,))",
                        "x.prod(-1)", "x.logsumexp(1)", "(x > 3).any(-1)", "x.cumsum(-1)", "x.mean()"])  # fmt: skip
    for schedule in ({}, SMALL):
        built = build(forward, "torch.randn(3, 2500) + 1", schedule)
        built.check()
        x = torch.randn(3, 2500)
        x[0, 2100], x[1, 7], x[1, 1900], x[2] = float("nan"), float("inf"), float("nan"), -float("inf")
        reference, candidate, _ = built.models({})
        with cuda_as_cpu():
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
def norms_over_several_loops():
    forward = returned(["F.group_norm(x, 2, self.w, self.b)", "F.instance_norm(x)", "x.amax((0, 2))",
                        "x.flatten(1).argmax(1)", "x.mean((0, 2, 3))", "x.softmax(1)", "x.sum((1, 3))"])  # fmt: skip
    init = "self.w = nn.Parameter(torch.randn(6))\nself.b = nn.Parameter(torch.randn(6))"
    for schedule in ({}, SMALL):
        build(forward, "torch.randn(3, 6, 5, 7)", schedule, init=init).check()


@case
def losses():
    inputs = "torch.randn(37, 19), torch.randn(37, 19), torch.randint(0, 19, (37,))"
    built = build("# x y t\n" + returned(LOSSES), inputs)
    assert not built.in_torch()
    built.check()


@case
def totals_have_the_same_bits_every_time():
    built = build("return F.mse_loss(x, x * 0.5)", "torch.randn(300, 100)", {"ROW_ITEMS": 1})
    assert "atomic" not in built.generated.source
    _, candidate, (x,) = built.models({})
    with cuda_as_cpu():
        first = candidate(x)
        emulation.next_order()
        assert torch.equal(first, candidate(x))
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
    for schedule in ({}, {"STEPS": 2, "REDUCE_BLOCK": 128, "COLUMNS": 64}):
        built = build(returned(expressions), "torch.randn(3, 70, 33)", schedule)
        assert not built.in_torch()
        built.check(slack=8.0)


@case
def pooling():
    built = build(returned(POOLS), "torch.randn(2, 3, 12, 15)")
    assert not built.in_torch()
    built.check()
    x = torch.randn(2, 3, 12, 15)
    x[0, 1, 4, 4], x[1, 0, 0, :] = float("nan"), -float("inf")
    built.check(inputs=[x])


@case
def products_and_convolutions_are_the_librarys():
    init = ROW + "\nself.w = nn.Parameter(torch.randn(37, 37))"
    built = build("return F.gelu(F.linear(x, self.w, self.b)).softmax(-1)", "torch.randn(7, 37)", init=init)
    assert [entry["kind"] for entry in built.generated.report] == ["torch", "nest"]
    built.check()


@case
def attention():
    forward = "# q k v\nreturn F.scaled_dot_product_attention(q, k, v, is_causal=True)"
    built = build(forward, ", ".join(["torch.randn(2, 3, 20, 16)"] * 3))
    assert "nest" in {entry["kind"] for entry in built.generated.report}
    built.check()


@case
def parts_side_by_side_and_sums_by_index():
    expressions = ["torch.cat([x.exp(), y * 2], 1) + 1", "F.pad(x * 2, (1, 2))", "x.flip(1)",
                   "x.flip(1).cumsum(1).flip(1)", "x.flip(0).cumsum(0).flip(0)",
                   "x.new_zeros(9, 7).scatter_add(0, i, x)",
                   "F.interpolate(x[None, None], scale_factor=2, mode='bilinear')"]  # fmt: skip
    built = build(
        "# x y i\n" + returned(expressions), "torch.randn(6, 7), torch.randn(6, 5), torch.randint(0, 9, (6, 7))"
    )
    assert not built.in_torch()
    assert "atomicAdd" in built.generated.source
    built.check()


@case
def loops_over_steps_launch_step_by_step():
    forward = "h = x[0] * 0\nfor t in range(x.shape[0]):\n    h = torch.tanh(h * 0.5 + x[t])\nreturn h"
    variants = [{"T": 9}, {"T": 5}]
    built = build(forward, "torch.randn(T, 6, 8)", constants="T = 9", variants=variants)
    assert [entry["kind"] for entry in built.generated.report][-1] == "repeat"
    for variant in variants:
        built.check(variant)


@case
def gradients():
    for forward, inputs, init in (GRADIENTS["layer norm"], GRADIENTS["loss"], GRADIENTS["linear"]):
        source = problem(forward, inputs, init=init)
        with torch.enable_grad():
            generated = generate(captured(source, backward=True), backend="cuda")
        module = types.SimpleNamespace()
        with cuda_as_cpu():
            exec(compile(generated.source, "candidate.py", "exec"), module.__dict__)
        reference, candidate, given = models(source, module)
        with cuda_as_cpu(), torch.enable_grad():
            compare(candidate, reference, given)


# ------------------------------------------------------------------------------------------------ types


@case
def half_types():
    forward = (
        "# x w y\nh = x @ w\nreturn (F.gelu(x) * y + 1, x.softmax(-1), F.layer_norm(x, (48,)), x.sum(0), x.amax(-1), "
        "h.relu(), x.float().mean(), x.argmax(-1), x.cumsum(-1), x > y, x + y.float())"
    )
    for name in ("float16", "bfloat16"):
        half = f".to(torch.{name})"
        inputs = f"torch.randn(20, 48){half}, torch.randn(48, 33){half}, torch.randn(20, 48){half}"
        built = build(forward, inputs)
        assert built.generated.knobs["VECTOR"] == 8
        reference, candidate, given = built.models({})
        eager = reference(*given)
        exact = reference(*(i.double() for i in given))
        with cuda_as_cpu():
            made = candidate(*given)
        for mine, low, true in zip(made, eager, exact, strict=True):
            assert mine.dtype == low.dtype
            assert mine.shape == low.shape
            if not mine.is_floating_point():
                assert torch.equal(mine, low)
                continue
            error, allowed = ((t.double() - true).norm() for t in (mine, low))
            assert error <= 1.05 * allowed + 1e-6 * true.norm()


@case
def float64_is_computed_in_float64():
    forward = returned(["x.exp() * 0.1", "F.gelu(x)", "x.softmax(-1)", "x.sqrt()", "x.mean()", "torch.log1p(x)",
                        "x**1.7", "F.mish(x)", "x.argmax(0)"])  # fmt: skip
    built = build(forward, "torch.rand(6, 40, dtype=torch.float64)")
    reference, candidate, given = built.models({})
    with cuda_as_cpu():
        made = candidate(*given)
    for mine, true in zip(made, reference.double()(*given), strict=True):
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
    forward = "return x.exp(), x.softmax(-1), x.sum(1), x.argmax(-1), x.cumsum(1), F.max_pool2d(x, 2)"
    with mock.patch.object(_triton_tiles, "LARGE", 3000):
        built = build(forward, "torch.randn(3, 34, 33)")
    assert built.generated.source.count("(long long)blockIdx.x") == 6
    assert "(long long)blockIdx" not in build("return x.exp()", "torch.randn(4, 5)").generated.source
    built.check()


@case
def every_choice_of_a_schedule_is_right():
    expressions = ["y", "y.sum(0)", "F.mse_loss(y, y * 0.5)", "F.max_pool2d(y[None], 2)", "y.cumsum(0)", "x.t() + 1"]
    source = problem("y = (x * 2).softmax(-1)\n" + returned(expressions), "torch.randn(19, 37)")
    space = schedule_space(Candidate(source, {}).graph, backend="cuda")
    assert set(space) == set(_cuda_schedule.CHOICES) - {"attention"}, set(space)
    for name, values in space.items():
        for value in values[1:]:
            built = Candidate(source, {name: value})
            assert built.generated.knobs[name] == value
            assert ("__expf(" in built.generated.source) == (name == "fast_math")
            built.check()


def _built_in(item):
    def check():
        variants = item.meta.variants_for("interpreter")
        built = Candidate(item.source, {}, [*item.meta.variants_for("gpu")[1:], *variants])
        assert [r for r in built.generated.report if r["kind"] != "torch"]
        for variant in variants:
            built.check(variant)

    return check


for _name, _item in PROBLEMS.items():
    CASES[_name] = _built_in(_item)


def main():
    path = FOLDER / "runtime.so"
    path.write_bytes(EmulatorLibrary(FOLDER).data)
    emulation.set_emulator(str(path))
    inline.set_product_provider(build_product)
    results = {}
    for name, function in CASES.items():
        if name not in sys.argv[1:]:
            continue
        torch.manual_seed(0)
        try:
            with torch.no_grad():
                function()
            results[name] = "ok"
        except Exception as error:  # noqa: BLE001 - reported by name to the test that reads it
            results[name] = traceback.format_exc()[-1500:] + getattr(error, "log", "")[:1500]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
