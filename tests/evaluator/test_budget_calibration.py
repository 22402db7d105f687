"""The error budget and the precision probe against honest kernels and cheats over eight operators."""

from __future__ import annotations

from functools import cache, partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from evaluator_budget_cases import CASES, CHAINS, Op, bf16, lane_sum, on_matrix_units, tf32
from torch import Tensor

from kernelwright.evaluator.accuracy import arrays, budget, distributions
from kernelwright.evaluator.accuracy.trials import data_of
from kernelwright.evaluator.worker.oracle_math import OutputScales, reference_scales
from kernelwright.records import InputDomain

DOMAIN = InputDomain(fill="normal")
OFF_NORMAL = [name for name in distributions.distributions_for(DOMAIN) if name != "normal"]
HONEST = [(name, variant) for name, case in CASES.items() for variant in case.honest]
CHEATS = [(name, variant) for name, case in CASES.items() for variant in case.cheats]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small tensors only: more threads are slower, and far slower beside other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Draw(NamedTuple):
    """One draw of inputs, and what the referee knows about it."""

    inputs: list[Tensor]
    output: OutputScales
    scale: np.ndarray
    reductions: tuple[budget.Reduction, ...]
    data: budget.Data


@cache
def draw(case: str, distribution: str = "normal") -> Draw:
    rng = distributions.secret_rng([len(case), len(distribution)])
    drawn = [distributions.make(distribution, shape, "float32", DOMAIN, rng) for shape in CASES[case].shapes]
    return _drawn(CASES[case].reference, [torch.from_numpy(array) for array in drawn], distribution)


def _drawn(reference: Op, inputs: list[Tensor], distribution: str) -> Draw:
    scales = reference_scales(reference, reference, inputs, unit_roundoff=2.0**-24)
    output = scales.outputs[0]
    s = arrays.scale(output.mca_rms.numpy(), output.low_row_rms.numpy(), output.ref64.numpy(), "float32")
    return Draw(inputs, output, s, scales.reductions, data_of(distribution))


def judge(drawn: Draw, kernel: Op) -> budget.OutputReport:
    return budget.judge_output(
        kernel(*drawn.inputs).numpy(),
        drawn.output.ref64.numpy(),
        drawn.scale,
        drawn.reductions,
        data=drawn.data,
        ref_low=drawn.output.ref_low.numpy(),
    )


def probe(case: str, kernel: Op) -> list[budget.BetaReport]:
    """The precision probe of every input in turn."""
    drawn, reports = draw(case), []
    rng = distributions.secret_rng(7)
    for i, x in enumerate(drawn.inputs):
        pair = [[*drawn.inputs], [*drawn.inputs]]
        pair[0][i], pair[1][i] = map(torch.from_numpy, distributions.probe_pair(x.numpy(), rng))
        got = kernel(*pair[0]).double() - kernel(*pair[1]).double()
        exact = [CASES[case].reference(*[x.double() for x in side]) for side in pair]
        noise = budget.probe_noise(
            arrays.noise_of(kernel(*pair[0]).numpy(), exact[0].numpy(), drawn.scale), drawn.reductions
        )
        reports.append(budget.probe_beta(got.numpy(), (exact[0] - exact[1]).numpy(), drawn.scale, noise=noise))
    return reports


@pytest.mark.parametrize(("case", "variant"), HONEST)
def test_honest_kernels_stay_within_half_of_the_budget(case, variant):
    kernel = CASES[case].honest[variant]
    report = judge(draw(case), kernel)
    assert report.passed
    assert report.load < 0.6
    assert report.kernelbench_allclose
    for beta in probe(case, kernel):
        assert beta.passed
        assert beta.decided
        assert beta.beta == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("distribution", OFF_NORMAL)
@pytest.mark.parametrize("case", CASES)
def test_honest_kernels_pass_on_every_distribution(case, distribution):
    drawn = draw(case, distribution)
    for kernel in (CASES[case].reference, *CASES[case].honest.values()):
        assert judge(drawn, kernel).passed


@pytest.mark.parametrize("made", ["rand", "randn"])
@pytest.mark.parametrize("shape", [(1, 16_384), (3, 16_384), (64, 4099)])
@pytest.mark.parametrize("case", CHAINS)
def test_one_chain_passes_on_a_problems_own_inputs(case, shape, made):
    """Most problems draw by ``torch.rand``: all terms of a sum then have one sign, and errors are larger."""
    reference, kernel = CHAINS[case]
    for seed in range(3):
        x = getattr(torch, made)(shape, generator=torch.Generator().manual_seed(seed))
        assert judge(_drawn(reference, [x], "own"), kernel).load < 0.8


def test_each_limit_has_room_for_the_chance_of_few_sums():
    """Layer norms of three rows: the error of a row's mean is one number, and so are the runs that its scale is of."""
    ref, s, sums = np.zeros(3000), np.ones(3000), budget.Reduction(1000, 3, "norm")
    everywhere, in_few, in_one = np.full(3000, 12.0), np.zeros(3000), np.zeros(3000)
    in_few[:60], in_one[0] = 6 * 12.0, 40 * 12.0
    for error in (everywhere, in_few, in_one):
        assert budget.judge_output(error, ref, s, [sums]).passed
        assert not budget.judge_output(error, ref, s, [sums._replace(sums=1000)]).passed
        assert not budget.judge_output(1.5 * error, ref, s, [sums]).passed


@pytest.mark.parametrize(("case", "variant"), CHEATS)
def test_cheats_fail_on_normal_data(case, variant):
    report = judge(draw(case), CASES[case].cheats[variant])
    assert not report.passed
    assert report.load > 2.0
    assert "error budget" in report.reason


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rounding", ["tf32", "bf16", "fp16"])
def test_rounded_inputs_do_not_answer_the_probe(case, rounding):
    for beta in probe(case, CASES[case].cheats[rounding]):
        assert not beta.passed
        assert abs(beta.beta) < 1e-6


def test_the_probe_sees_one_rounded_operand_and_half_of_the_rows():
    of_a, of_b = probe("gemm", CASES["gemm"].cheats["tf32 weights"])
    assert of_a.passed
    assert not of_b.passed
    for beta in probe("softmax", CASES["softmax"].cheats["half rows tf32"]):
        assert beta.beta == pytest.approx(0.5, abs=0.1)
        assert beta.min_block == pytest.approx(0.0, abs=1e-6)
        assert not beta.passed


def test_sums_that_stay_in_matrix_units_are_not_those_of_float32():
    """Whatever the parts of the operands hold: the units cut off, so errors of one sign add up along the depth."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(16, 8192, generator=generator), torch.randn(8192, 16, generator=generator)
    drawn = _drawn(torch.matmul, [a, b], "normal")
    for narrow, parts in ((tf32, 2), (bf16, 3)):
        in_blocks, in_one = (partial(on_matrix_units, narrow=narrow, parts=parts, block=block) for block in (32, 8192))
        assert judge(drawn, in_blocks).load < 0.1
        assert judge(drawn, in_one).load > 1.0


def test_kernelbench_would_have_passed_what_the_budget_fails():
    drawn = draw("softmax")
    constant = judge(drawn, CASES["softmax"].cheats["tf32 numerators"])
    assert constant.kernelbench_allclose
    assert not constant.passed


@pytest.mark.parametrize("fill", ["normal", "uniform"])
def test_lane_sums_of_positive_data_pass(fill):
    """The probe format must not bias the sums of a problem whose domain is positive."""
    domain = InputDomain(fill=fill, low=0.0, high=8.0)
    x = distributions.make("normal", (16, 32768), "float32", domain, distributions.secret_rng(3))
    inputs = [torch.from_numpy(x)]
    scales = reference_scales(lambda x: x.sum(-1), lambda x: x.sum(-1), inputs, unit_roundoff=2.0**-24)
    y = scales.outputs[0]
    s = arrays.scale(y.mca_rms.numpy(), y.low_row_rms.numpy(), y.ref64.numpy(), "float32")
    got = lane_sum(inputs[0], 8).numpy()
    report = budget.judge_output(got, y.ref64.numpy(), s, scales.reductions)
    assert report.passed
