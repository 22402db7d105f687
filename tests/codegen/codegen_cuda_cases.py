"""CUDA candidates of the generator, run in the emulator: a script, because its hooks belong to a whole process.

Its arguments are the names of cases. Prints one JSON object: the name of each, and "ok" or what went wrong.
"""

from __future__ import annotations

import subprocess
import tempfile
import types
from pathlib import Path
from typing import ClassVar
from unittest import mock

import torch
from codegen_cases import Emitted, cases_with, halves, main, reductions_of_long_rows, returned
from conftest import problem
from test_codegen_gradients import CASES as GRADIENTS
from test_codegen_gradients import captured, compare, models

from kernelwright import inline
from kernelwright.codegen import _cuda_schedule, _triton_tiles, generate, schedule_space
from kernelwright.evaluator.builds.emulation import EmulatorLibrary, emulated_source, emulator_command
from kernelwright.evaluator.worker.triton.interpreter import cuda_as_cpu
from kernelwright.inline import emulation

FOLDER = Path(tempfile.mkdtemp())
ROW = "self.b = nn.Parameter(torch.randn(37))"


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


class Candidate(Emitted):
    """A CUDA candidate in the emulator."""

    backend = "cuda"
    small: ClassVar = {"rows": "blocks", "REDUCE_BLOCK": 128, "ROW_ITEMS": 1, "VECTOR": 2, "COLUMNS": 16}
    scans: ClassVar = {"STEPS": 2, "REDUCE_BLOCK": 128, "COLUMNS": 64}

    def load(self):
        with cuda_as_cpu():
            return super().load()

    def models(self, *arguments):
        with cuda_as_cpu():
            reference, candidate, inputs = super().models(*arguments)
        candidate.forward = cuda_as_cpu()(candidate.forward)
        return reference, candidate, inputs


build, case = Candidate.build, cases_with(Candidate)


# ------------------------------------------------------------------------------------------------ pointwise


@case
def a_chain_over_a_row_of_weights():
    build("return torch.relu(x * 2 + self.b)", "torch.randn(7, 37)", init=ROW).check()


@case
def inputs_that_are_not_aligned():
    """A slice of a longer tensor begins anywhere. So does a row of 37 numbers."""
    built = build("return x.exp(), x.softmax(-1)", "torch.randn(3, 36)")
    built.check(inputs=[torch.randn(109)[1:].view(3, 36)])
    build("return x.exp()", "torch.randn(36, 3)").check(inputs=[torch.randn(3, 36).t()])


# ------------------------------------------------------------------------------------------------ reductions


@case
def rows_longer_than_a_block_takes_at_once():
    for schedule in ({}, Candidate.small):
        reductions_of_long_rows(Candidate, schedule)


@case
def norms_over_several_loops():
    forward = returned(["F.group_norm(x, 2, self.w, self.b)", "F.instance_norm(x)", "x.amax((0, 2))",
                        "x.flatten(1).argmax(1)", "x.mean((0, 2, 3))", "x.softmax(1)", "x.sum((1, 3))"])  # fmt: skip
    init = "self.w = nn.Parameter(torch.randn(6))\nself.b = nn.Parameter(torch.randn(6))"
    for schedule in ({}, Candidate.small):
        build(forward, "torch.randn(3, 6, 5, 7)", schedule, init=init).check()


@case
def totals_have_the_same_bits_every_time():
    built = build("return F.mse_loss(x, x * 0.5)", "torch.randn(300, 100)", {"ROW_ITEMS": 1})
    assert "atomic" not in built.generated.source
    _, candidate, (x,) = built.models({})
    first = candidate(x)
    emulation.next_order()
    assert torch.equal(first, candidate(x))
    built.check()


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
    assert all(built.generated.knobs["VECTOR"] == 8 for built in halves(Candidate, {}))


# ------------------------------------------------------------------------------------------------ shapes, schedules


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


if __name__ == "__main__":
    runtime = FOLDER / "runtime.so"
    runtime.write_bytes(EmulatorLibrary(FOLDER).data)
    emulation.set_emulator(str(runtime))
    inline.set_product_provider(build_product)
    main(case)
