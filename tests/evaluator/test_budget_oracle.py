"""What the oracle computes: longest reductions, Monte-Carlo arithmetic, scales of modules, index rules."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelwright.datasets.runtime import double_twin
from kernelwright.evaluator.accuracy import budget
from kernelwright.evaluator.accuracy.budget import Reduction
from kernelwright.evaluator.worker.monte_carlo import MonteCarloArithmetic
from kernelwright.evaluator.worker.oracle_math import Reductions, flatten_outputs, reductions, reference_scales

U = 2.0**-24
X = torch.randn(4, 8, 16, 16, generator=torch.Generator().manual_seed(1))


def noisy(u=1e-3):
    return MonteCarloArithmetic(u, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("length", "fn"),
    [
        (1, lambda: torch.relu(X) + X),
        (16, lambda: torch.softmax(X, -1)),
        (8, lambda: torch.log_softmax(X, 1)),
        (16, lambda: X @ X),
        (48, lambda: F.linear(torch.ones(2, 48), torch.ones(3, 48), torch.ones(3))),
        (8 * 9, lambda: F.conv2d(X, torch.ones(5, 8, 3, 3))),
        (4 * 9, lambda: F.conv2d(X, torch.ones(6, 4, 3, 3), groups=2)),
        (8 * 4, lambda: F.conv_transpose2d(X, torch.ones(8, 5, 2, 2))),
        (256, lambda: X.mean((2, 3))),
        (X.numel(), lambda: X.sum()),
        (16, lambda: X.var(-1)),
        (16, lambda: torch.logsumexp(X, -1)),
        (8, lambda: torch.cumsum(X, 1)),
        (9, lambda: F.avg_pool2d(X, 3)),
        (256, lambda: F.adaptive_avg_pool2d(X, 1)),
        (16, lambda: F.layer_norm(X, (16,))),
        (4 * 256, lambda: F.group_norm(X, 2)),
        (4 * 256, lambda: F.batch_norm(X, torch.zeros(8), torch.ones(8), training=True)),
        (1, lambda: F.batch_norm(X, torch.zeros(8), torch.ones(8))),
        (16, lambda: F.rms_norm(X, (16,))),
        (16, lambda: F.scaled_dot_product_attention(X, X, X)),
        (X.numel(), lambda: F.mse_loss(X, X + 1)),
        (4, lambda: F.cross_entropy(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))),
        (16, lambda: torch.einsum("bcij,bcjk->bcik", X, X)),
        (16, lambda: torch.linalg.vector_norm(X, dim=-1)),
        (7, lambda: torch.zeros(3).scatter_add(0, torch.zeros(7, dtype=torch.int64), torch.ones(7))),
    ],
)
def test_longest_reduction_by_operator(length, fn):
    assert max((r.terms for r in reductions(fn, [])), default=1) == length


BATCHED = torch.ones(6, 3, 5, 5)


@pytest.mark.parametrize(
    ("found", "fn"),
    [
        (Reduction(16, 4 * 8 * 16, "norm"), lambda: torch.softmax(X, -1)),  # each of the row's sums decides 16 outputs
        (Reduction(7, 1, "norm"), lambda: torch.softmax(torch.ones(1, 7), -1)),
        (Reduction(7, 3), lambda: torch.ones(3, 7).mean(-1)),
        (Reduction(7, 3), lambda: torch.ones(3, 7).cumsum(-1)),
        (Reduction(7, 3), lambda: torch.ones(3, 7).norm(dim=-1)),
        (Reduction(21, 1), lambda: torch.ones(3, 7).sum()),
        (Reduction(7, 3, "norm"), lambda: F.layer_norm(torch.ones(3, 7), (7,))),
        (Reduction(150, 3, "norm"), lambda: F.batch_norm(BATCHED, None, None, training=True)),
        (Reduction(7, 12, "product"), lambda: torch.ones(3, 7) @ torch.ones(7, 4)),
        (Reduction(27, 6 * 2 * 9, "product"), lambda: F.conv2d(BATCHED, torch.ones(2, 3, 3, 3))),
    ],
)
def test_what_is_summed_up_and_how_many_sums_there_are(found, fn):
    assert reductions(fn, []) == (found,)


def test_only_reductions_that_decide_a_budget_are_kept():
    def fn(x):
        return torch.softmax(x, -1).sum() + x.sum(0).sum() + x.sum()

    assert reductions(fn, [torch.ones(6, 8)]) == (Reduction(48, 1),), "no other is as long, or of as few sums"


@pytest.mark.parametrize(
    ("terms", "fn"),
    [
        (4 * 3 * 3, lambda x: F.conv2d(x, torch.ones(2, 3, 3, 3, requires_grad=True))),  # places of all samples
        (60, lambda x: F.layer_norm(x, (5,), torch.ones(5, requires_grad=True))),  # rows, for the weights
        (100, lambda x: F.batch_norm(x, None, None, torch.ones(3, requires_grad=True), training=True)),
        (100, lambda x: F.group_norm(x, 3, torch.ones(3, requires_grad=True))),
        (5, lambda x: torch.softmax(x, -1)),
    ],
)
def test_gradients_are_sums_as_well(terms, fn):
    x = torch.randn(4, 3, 5, 5, requires_grad=True)
    y = fn(x)
    with Reductions() as seen:
        y.backward(torch.ones_like(y))
    assert max(found.terms for found in seen.found) == terms


def test_monte_carlo_perturbs_what_rounds_and_nothing_else():
    x = torch.linspace(1, 2, 64, dtype=torch.float64).reshape(8, 8)
    with noisy():
        exact = [x.t(), x.clone(), torch.relu(x), torch.cat([x, x]), x[2:5], x.to(torch.int64), x > 1.5, torch.ones(3)]
        rounded = [x * 2, torch.exp(x), x @ x, x.sum(), x.t() + 1]
        whole = x.to(torch.int64) + 1
    plain = [x.t(), x, x, torch.cat([x, x]), x[2:5], x.to(torch.int64), x > 1.5, torch.ones(3)]
    assert all(torch.equal(a, b) for a, b in zip(exact, plain, strict=True))
    for a, b in zip(rounded, [x * 2, torch.exp(x), x @ x, x.sum(), x.t() + 1], strict=True):
        assert not torch.equal(a, b)
        assert torch.allclose(a, b, rtol=0.01)
    assert torch.equal(whole, x.to(torch.int64) + 1)


def test_monte_carlo_sees_in_place_operators_out_arguments_and_tuples():
    x = torch.full((100,), 3.0, dtype=torch.float64)
    out = torch.empty(100, dtype=torch.float64)
    y = x.clone()
    with noisy():
        y.add_(1)
        y[:50].mul_(2)
        torch.mul(x, 2, out=out)
        mean_and_variance = torch.var_mean(torch.arange(9.0, dtype=torch.float64))
    assert (y[:50] != 8).all()
    assert (y[50:] != 4).all()
    assert (out != 6).all()
    assert mean_and_variance[0] != 7.5
    assert mean_and_variance[1] != 4


def test_monte_carlo_has_the_asked_size():
    x = torch.ones(200_000, dtype=torch.float64)
    with noisy(1e-4):
        y = x * 1.0
    assert (y - 1).std().item() == pytest.approx(1e-4, rel=0.03)
    assert abs((y - 1).mean().item()) < 2e-6


def test_float32_runs_are_left_alone():
    x = torch.ones(10)
    with noisy():
        assert torch.equal(x * 2, torch.full((10,), 2.0))


class Tricky(nn.Module):
    """Parameters, buffers, a plain tensor attribute, a conversion inside, state that changes, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("offset", torch.ones(8))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.plain = torch.full((8,), 0.5)

    def forward(self, x: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        self.steps += 1
        y = self.norm(self.linear(x.float())) * self.plain + self.offset
        y = F.dropout(y, 0.25, training=self.training)
        return {"y": y * scale, "more": (y > 0, torch.zeros(3, dtype=torch.float32) + y[0, :3])}


def test_scales_of_a_module_leave_it_and_its_inputs_as_they_were():
    torch.manual_seed(3)
    model, x = Tricky().train(), torch.randn(32, 16)
    model64, before = (
        double_twin(model, lambda: copy.deepcopy(model)),
        {k: v.clone() for k, v in model.state_dict().items()},
    )
    x_before, state = x.clone(), torch.random.get_rng_state()
    scales = reference_scales(model64, model, [x, 2.0], unit_roundoff=U, runs=3, seed=11)
    assert torch.equal(x, x_before)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(torch.equal(v, before[k].to(v.dtype)) for k, v in model64.state_dict().items())
    assert torch.get_default_dtype() == torch.float32
    assert [o.kind for o in scales.outputs] == ["float", "exact", "float"]
    y = scales.outputs[0]
    assert y.ref64.dtype == torch.float64
    assert y.ref_low.dtype == torch.float32
    assert (y.ref_low - y.ref64).abs().max() < 1e-5  # the same dropout mask, the conversion done in double
    assert (y.ref64 == 0).float().mean().item() == pytest.approx(0.25, abs=0.15)
    assert scales.outputs[2].ref64.dtype == torch.float64
    assert max(r.terms for r in scales.reductions) == 32


def test_parameters_count_in_the_scale():
    torch.manual_seed(0)
    model = nn.Linear(4, 4, bias=False).double()
    x = torch.zeros(2, 4, dtype=torch.float64)
    x[:, 0] = 1.0
    spread = reference_scales(model, model, [x], unit_roundoff=1e-3, runs=64, seed=1).outputs[0].mca_rms
    # the weight, the input and the product are each off by 1e-3
    assert (spread / model(x).abs()).mean().item() == pytest.approx(math.sqrt(3) * 1e-3, rel=0.15)


def test_scales_repeat_with_their_seed():
    def fn(x):
        return torch.softmax(x, -1)

    x = torch.randn(8, 32)
    first, same, other = (reference_scales(fn, fn, [x], unit_roundoff=U, seed=s).outputs[0] for s in (1, 1, 2))
    assert torch.equal(first.mca_rms, same.mca_rms)
    assert not torch.equal(first.mca_rms, other.mca_rms)


def test_row_errors_are_taken_over_enough_elements():
    x = torch.randn(6, 40)
    rows = reference_scales(torch.exp, torch.exp, [x], unit_roundoff=U).outputs[0].low_row_rms
    assert rows.shape == (6, 1)
    thin = reference_scales(torch.exp, torch.exp, [x.reshape(240, 1)], unit_roundoff=U).outputs[0].low_row_rms
    assert thin.shape == (1, 1)
    scalar = reference_scales(torch.sum, torch.sum, [x], unit_roundoff=U).outputs[0].low_row_rms
    assert scalar.shape == ()


def test_non_finite_answers_leave_finite_scales():
    x = torch.tensor([[1.0, 100.0, -math.inf, math.nan]])
    output = reference_scales(torch.exp, torch.exp, [x], unit_roundoff=U).outputs[0]
    assert output.mca_rms.isfinite().all()
    assert output.low_row_rms.isfinite().all()


def test_an_argmax_brings_what_it_searched():
    x = torch.tensor([[1.0, 3.0, 3.0 + 5e-7], [5.0, 2.0, 1.0]])

    def fn(x):
        return (x * 2).argmax(-1)

    output = reference_scales(fn, fn, [x], unit_roundoff=U).outputs[0]
    assert output.kind == "index"
    rule = output.index
    assert rule is not None
    assert not rule.distinct
    assert torch.equal(rule.values, x.double() * 2)
    judge = {"values": rule.values.numpy(), "values_scale": rule.scale.numpy(), "reductions": [], "dim": rule.dim}
    wanted = output.ref64.numpy()
    assert budget.judge_index(np.array([1, 0]), wanted, distinct=False, **judge).passed
    assert not budget.judge_index(np.array([0, 0]), wanted, distinct=False, **judge).passed


@pytest.mark.parametrize(
    ("fn", "distinct"),
    [
        (lambda x: x.max(dim=1)[1], False),
        (lambda x: x.argmin(), False),
        (lambda x: x.argmax(1, keepdim=True).to(torch.int32), False),
        (lambda x: x.topk(3, dim=1)[1], True),
        (lambda x: x.sort(dim=0)[1], True),
    ],
)
def test_every_search_is_recognised_and_its_own_answer_passes(fn, distinct):
    x = torch.randn(6, 9)
    output = reference_scales(fn, fn, [x], unit_roundoff=U).outputs[0]
    assert output.kind == "index"
    assert output.index.distinct == distinct
    arrays = (output.ref_low.numpy(), output.ref64.numpy(), output.index.values.numpy(), output.index.scale.numpy())
    report = budget.judge_index(*arrays, [], dim=output.index.dim, distinct=distinct)
    assert report.passed
    assert report.kernelbench_allclose


def test_a_comparison_has_slack_at_ties_only():
    x = torch.randn(2000, generator=torch.Generator().manual_seed(1))
    x[:100] = 0.1  # 3 * 0.1 is rounded; which side of 0.3 it falls on is luck

    def fn(x):
        return x * 3 > 0.3

    output = reference_scales(fn, fn, [x], unit_roundoff=U).outputs[0]
    assert output.kind == "exact"
    assert output.mca_rms[:100].max() == 1.0
    assert output.mca_rms[100:].max() == 0.0


def test_a_mask_made_in_the_forward_is_not_perturbed():
    def fn(x):
        mask = torch.tril(torch.ones(8, 8)) == 1
        return torch.softmax(x.masked_fill(~mask, -math.inf), -1)

    output = reference_scales(fn, fn, [torch.randn(8, 8)], unit_roundoff=U).outputs[0]
    assert output.mca_rms.max() < 1e-5
    assert (output.mca_rms[0, 1:] == 0).all()


def test_outputs_are_flattened_in_order():
    a, b = torch.ones(2), torch.zeros(3)
    assert [t.shape[0] if t.ndim else t.item() for t in flatten_outputs([a, {"x": b, "y": (a, None)}, 4])] == [
        2,
        3,
        2,
        4,
    ]
    assert flatten_outputs(torch.ones(2, dtype=torch.complex64))[0].shape == (2, 2)
    with pytest.raises(TypeError, match="str"):
        flatten_outputs("nothing")
