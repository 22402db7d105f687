"""Where a program is cut into steps: what may be fused, and what may be written over."""

from __future__ import annotations

import pytest
import torch

LIBRARY = {"gemm": "library"}


@pytest.mark.matrix(one_in=1)  # sees a fault of benchmarks/mutants.json
@pytest.mark.parametrize("fusion", ["full", "none"])
def test_steps_are_not_fused_round_a_call_that_stands_between_them(build, fusion):
    schedule = {**LIBRARY, "fusion": fusion}
    build("h = x * 2 + 1\nreturn h + h @ h", "torch.randn(23, 23)", schedule=schedule).check()


@pytest.mark.matrix(one_in=1)  # sees a fault of benchmarks/mutants.json
@pytest.mark.parametrize("in_place", [True, False])
def test_what_another_step_still_reads_is_not_written_over(build, in_place):
    init = "self.w = nn.Parameter(torch.randn(19, 19))\nself.m = nn.Parameter(torch.randn(19, 19))"
    schedule = {**LIBRARY, "in_place": in_place}
    build(
        "h = x @ self.w\nreturn h + (h * 2).relu() @ self.m", "torch.randn(7, 19)", init=init, schedule=schedule
    ).check()


def test_of_equal_extremes_the_first_is_pointed_at(build):
    calls = (f"x.arg{which}({dim})" for which in ("max", "min") for dim in (0, 1, -1))
    built = build(f"return {', '.join(calls)}", "torch.randn(5, 9, 33)")
    torch.manual_seed(3)
    built.check(inputs=[torch.randint(0, 2, (5, 9, 33)).float()])


def test_a_result_of_another_shape_has_memory_of_its_own(build):
    init = "self.w = nn.Parameter(torch.randn(37, 19))"
    forward = "return F.linear(x, self.w).view(2, 9, 37).relu()"
    build(forward, "torch.randn(18, 19)", init=init, schedule=LIBRARY).check()


def test_of_what_is_picked_only_that_is_computed(build):
    """The row of logarithms is never written: one kernel reads the logits once."""
    forward = "# x i\np = torch.log_softmax(x, 1).gather(1, i[:, None])\nreturn p.squeeze(1).exp() * 2"
    built = build(forward, "torch.randn(9, 33), torch.randint(33, (9,))")
    assert [step["kind"] for step in built.generated.report] == ["nest"]
    built.check()
    built = build("# x i\nreturn (x * 2 + x[:, :1]).gather(0, i), x * 2", "torch.randn(9, 4), torch.randint(9, (3, 4))")
    built.check()
