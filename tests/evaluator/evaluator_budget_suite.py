"""The error budget over the built-in suite: problems as the referee checks them, treated in this process.

Only for problems that are trusted. What a draw is, and how it is judged, follows the check of
``kernelwright.evaluator.truth.check_sets`` step by step, without its workers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from evaluator_budget_kernels import CHEATS, HONEST, ROUNDINGS, Arithmetic, Kernels, Op
from torch import Tensor, nn

from kernelwright.datasets import load_suite
from kernelwright.datasets import runtime as _runtime
from kernelwright.evaluator.accuracy import arrays
from kernelwright.evaluator.accuracy import budget as _budget
from kernelwright.evaluator.accuracy import distributions as _distributions
from kernelwright.evaluator.accuracy.trials import data_of
from kernelwright.evaluator.worker.oracle_math import directions, flatten_outputs, reference_scales
from kernelwright.records import DeviceClass, InputDomain, Problem

RUNS, RUNS_OFF_NORMAL = 8, 4  # of Monte-Carlo arithmetic
NORMAL = ("own", "normal", "probe")
UNIT_ROUNDOFF = 2.0**-24

# Whose operators, or some of them, have no replacement here: convolutions of one and three dimensions, with groups or
# transposed; pooling by averages; numbers of 16 bits; gathers and scatters; and formulae that begin with a number.
NOT_REPLACED = {
    "adamw_update",
    "adaptive_avg_pool2d",
    "avg_pool2d",
    "batch_norm_train",
    "bfloat16_feed_forward",
    "bfloat16_matmul",
    "bfloat16_residual_rms_norm",
    "binary_cross_entropy_with_logits",
    "contrastive_loss",
    "conv1d_dilated",
    "conv1d_glu",
    "conv3d",
    "conv_transpose2d",
    "conv_transpose_bias_tanh",
    "convnext_block",
    "cross_entropy_backward",
    "cummax",
    "cumprod",
    "depthwise_conv2d",
    "depthwise_separable_conv",
    "embedding_bag_mean",
    "float16_masked_softmax",
    "histogram",
    "instance_norm",
    "inverted_residual",
    "kl_div_loss",
    "logsumexp",
    "matvec",
    "max_pool3d",
    "min_with_indices",
    "prelu",
    "scatter_add",
    "segment_sum",
    "softplus",
    "top_k",
    "upsample_bilinear2d",
    "variance",
}

Run = Callable[[nn.Module, Sequence[Any]], list[Tensor]]


def replaced_problems() -> list[Problem]:
    """The problems of the built-in suite whose operators all have replacements."""
    return [problem for problem in load_suite() if problem.name not in NOT_REPLACED]


class Truth(NamedTuple):
    """One output of one draw: what it must be and how far off it may be."""

    kind: str
    exact: np.ndarray
    low: np.ndarray
    scale: np.ndarray
    rule: tuple[np.ndarray, np.ndarray, int, bool] | None


class Draw(NamedTuple):
    """Inputs and truths. ``partner`` (of a probe) is the draw that differs below lower precision in one input."""

    distribution: str
    inputs: list[Any]
    reductions: tuple[_budget.Reduction, ...]
    truths: list[Truth]
    partner: Draw | None = None


class Bench(NamedTuple):
    """One variant of a problem with fresh weights and its draws."""

    name: str
    model: nn.Module
    draws: list[Draw]


class Outcome(NamedTuple):
    """What became of one treatment of one problem.

    load, other_load: the largest error as a share of the budget, on normal data and on other distributions; at most 1
    passes. betas: smallest and largest answer to a probe that counts (nan where none does); min_block likewise.
    reasons: of all trials that failed, by distribution.
    """

    passed: bool
    load: float
    other_load: float
    betas: tuple[float, float]
    min_block: float
    reasons: Mapping[str, str]


def bench(problem: Problem, device_class: DeviceClass = "cpu", variant: int = 0, seed: int = 0) -> Bench:
    """Load a problem, draw weights, inputs of every distribution and probes, and compute the truths."""
    constants = problem.meta.variants_for(device_class)[variant]
    module = _runtime.load_reference(problem.source, constants)
    model = _runtime.make_model(module, _runtime.make_init_inputs(module, seed), mode=problem.meta.mode, seed=seed)
    _runtime.randomise_parameters(model, seed + 1)
    maker = _Maker(problem, model, lambda n: _runtime.make_inputs(module, n), seed)
    return Bench(problem.id.partition("/")[2], model, list(maker.draws()))


def outcome(made: Bench, run: Run) -> Outcome:
    """Judge one way to run a model on all draws."""
    reasons: dict[str, str] = {}
    loads = {True: 0.0, False: 0.0}
    betas, blocks = [], []
    for draw in made.draws:
        outputs = _arrays(run(made.model, draw.inputs))
        reports = [_judge(truth, y, draw) for truth, y in zip(draw.truths, outputs, strict=True)]
        normal = draw.distribution in NORMAL
        loads[normal] = max(loads[normal], *(r.load for r in reports))
        found = [r.reason for r in reports if not r.passed]
        if draw.partner is not None:
            other = _arrays(run(made.model, draw.partner.inputs))
            for report in _probe(draw, outputs, other):
                found += [report.reason] if not report.passed else []
                betas += [report.beta] if report.decided else []
                blocks += [] if math.isnan(report.min_block) else [report.min_block]
        if found:
            reasons[draw.distribution] = found[0]
    ends = (min(betas, default=math.nan), max(betas, default=math.nan))
    return Outcome(not reasons, loads[True], loads[False], ends, min(blocks, default=math.nan), reasons)


def replacing(arithmetic: Arithmetic) -> Run:
    """Run the model with its operators replaced."""

    def run(model: nn.Module, inputs: Sequence[Any]) -> list[Tensor]:
        with Kernels(arithmetic):
            return eager(model, inputs)

    return run


def eager(model: nn.Module, inputs: Sequence[Any]) -> list[Tensor]:
    """The reference itself."""
    with torch.no_grad():
        return flatten_outputs(model(*inputs))


def rounded_inputs(rounding: Op) -> Run:
    """Every float input rounded before anything else."""
    return lambda model, inputs: eager(model, [rounding(x) if _is_float(x) else x for x in inputs])


def rounded_outputs(rounding: Op) -> Run:
    return lambda model, inputs: [rounding(y) if _is_float(y) else y for y in eager(model, inputs)]


WHOLE_CHEATS: Mapping[str, Run] = {
    **{f"{name} inputs": rounded_inputs(rounding) for name, rounding in ROUNDINGS.items()},
    **{f"{name} outputs": rounded_outputs(rounding) for name, rounding in ROUNDINGS.items()},
}


def outcomes(
    made: Bench, honest: Sequence[str] = tuple(HONEST), cheats: Sequence[str] | None = None
) -> dict[str, Outcome]:
    """Treatments of one problem by name, honest ones first; ``eager`` is the reference itself.

    Cheats that change no output of any draw are left out: there is nothing to find.
    """
    found = {"eager": outcome(made, eager)}
    found |= {name: outcome(made, replacing(HONEST[name])) for name in honest}
    for name, run in all_cheats().items():
        if (cheats is None or name in cheats) and differs(made, run):
            found[name] = outcome(made, run)
    return found


def all_cheats() -> dict[str, Run]:
    """Lower precision inside of operators, and of all inputs or outputs."""
    return {**{name: replacing(arithmetic) for name, arithmetic in CHEATS.items()}, **WHOLE_CHEATS}


def differs(made: Bench, run: Run, honest: Run | None = None) -> bool:
    """Whether outputs differ anywhere from those of an honest run, by default of a cheat's own twin."""
    plain = honest or (eager if run in WHOLE_CHEATS.values() else replacing(Arithmetic()))
    return any(
        not torch.equal(a, b)
        for draw in made.draws
        for a, b in zip(run(made.model, draw.inputs), plain(made.model, draw.inputs), strict=True)
    )


# ---------------------------------------------------------------------------------------------------------- draws


class _Maker:
    """Makes the draws of one model."""

    def __init__(self, problem: Problem, model: nn.Module, own: Callable[[int], list[Any]], seed: int) -> None:
        self._model, self._double, self._own, self._seed = (
            model,
            _runtime.double_twin(model, lambda: copy.deepcopy(model)),
            own,
            seed,
        )
        self._rng = _distributions.secret_rng([seed, problem.number or 0, problem.level])
        names = type(model).forward.__code__.co_varnames[1 : 1 + len(own(0))]
        self._domains = [problem.meta.inputs.get(name, InputDomain()) for name in names]

    def draws(self) -> Iterator[Draw]:
        for i in range(2):
            yield self._draw("own", self._own(self._seed + i))
        for name in self._names():
            draw = self._draw(name, self._compose(name))
            if name != "normal" or not any(
                t.kind == "float" and arrays.ill_conditioned(t.scale, t.exact) for t in draw.truths
            ):
                yield draw
        yield from self._probes()

    def _names(self) -> list[str]:
        names: dict[str, None] = {}
        for x, domain in zip(self._own(0), self._domains, strict=True):
            if isinstance(x, Tensor) and domain.fill != "structured":
                names.update(dict.fromkeys(_distributions.distributions_for(domain, _dtype(x))))
        return list(names)

    def _compose(self, name: str) -> list[Any]:
        """Inputs of one distribution; an input that does not admit it gets its plainest, a structured one its own."""
        made = []
        for x, domain in zip(self._own(self._seed + 7), self._domains, strict=True):
            if not isinstance(x, Tensor) or domain.fill == "structured":
                made.append(x)
                continue
            admitted = _distributions.distributions_for(domain, _dtype(x))
            chosen = name if name in admitted else admitted[0]
            made.append(torch.from_numpy(_distributions.make(chosen, x.shape, _dtype(x), domain, self._rng)))
        return made

    def _probes(self) -> Iterator[Draw]:
        for i, domain in enumerate(self._domains):
            inputs = self._compose("normal")
            if domain.fill == "structured" or not _is_float(inputs[i]):
                continue
            few = sum(y.size for y in _arrays(eager(self._model, inputs)) if y.dtype == np.float32) < 16
            towards = directions(self._double, inputs, i, self._seed).numpy() if few else None
            pair = _distributions.probe_pair(inputs[i].numpy(), self._rng, domain.low, domain.high, towards)
            sides = [self._draw("probe", [*inputs[:i], torch.from_numpy(x), *inputs[i + 1 :]]) for x in pair]
            yield sides[0]._replace(partner=sides[1])

    def _draw(self, distribution: str, inputs: list[Any]) -> Draw:
        runs = RUNS if distribution in NORMAL else RUNS_OFF_NORMAL
        scales = reference_scales(
            self._double, self._model, inputs, unit_roundoff=UNIT_ROUNDOFF, runs=runs, seed=self._seed
        )
        truths = []
        for y in scales.outputs:
            exact, low, deviation = (t.numpy() for t in (y.ref64, y.ref_low, y.mca_rms))
            if y.kind == "float":
                deviation = arrays.scale(deviation, y.low_row_rms.numpy(), exact, "float32")
            rule = y.index and (y.index.values.numpy(), y.index.scale.numpy(), y.index.dim, y.index.distinct)
            truths.append(Truth(y.kind, exact, low, deviation, rule))
        return Draw(distribution, inputs, scales.reductions, truths)


def _judge(truth: Truth, value: np.ndarray, draw: Draw) -> _budget.OutputReport:
    if truth.kind == "float":
        return _budget.judge_output(
            value,
            truth.exact,
            truth.scale,
            draw.reductions,
            data=data_of(draw.distribution),
            ref_low=truth.low,
        )
    if truth.rule is not None:
        values, scale, dim, distinct = truth.rule
        return _budget.judge_index(value, truth.exact, values, scale, draw.reductions, dim=dim, distinct=distinct)
    return _budget.judge_exact(value, truth.exact, truth.scale)


def _probe(draw: Draw, outputs: list[np.ndarray], other: list[np.ndarray]) -> Iterator[_budget.BetaReport]:
    assert draw.partner is not None
    for truth, partner, y, z in zip(draw.truths, draw.partner.truths, outputs, other, strict=True):
        if truth.kind == "float":
            with np.errstate(invalid="ignore"):  # infinities of a cheat
                change = y.astype(np.float64) - z.astype(np.float64)
            yield _budget.probe_beta(
                change,
                truth.exact - partner.exact,
                truth.scale,
                noise=_budget.probe_noise(arrays.noise_of(y, truth.exact, truth.scale), draw.reductions),
            )


def _arrays(outputs: Sequence[Tensor]) -> list[np.ndarray]:
    return [y.detach().numpy() for y in outputs]


def _dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype == torch.float32
