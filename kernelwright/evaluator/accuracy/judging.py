"""Judge one call's outputs against the expected ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelwright.evaluator.accuracy import arrays, budget
from kernelwright.evaluator.accuracy.trials import Trial, Truth, Variant, data_of
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.wire.claims import OutputClaim
from kernelwright.records import Status


class Judgement(NamedTuple):
    """The result of a comparison; ``load`` is the error as a share of the budget."""

    status: Status | None
    reason: str
    load: float
    tolerance: float
    allclose: bool


class Judge:
    """Judges outputs whose bytes the referee has read. For a device a subclass judges them where they are."""

    @np.errstate(invalid="ignore", over="ignore")  # a signalling NaN among hostile bytes is an invalid cast
    def trial(
        self, trial: Trial, variant: Variant, claims: Sequence[OutputClaim], tolerance_scale: float
    ) -> tuple[Judgement, list[Any]]:
        """Compare one call's outputs with the truth. Returned, too: what :meth:`probe` needs of each output."""
        worst = Judgement(None, "", 0.0, budget.tolerance(trial.reductions, tolerance_scale), True)
        seen: list[Any] = []
        for j, (spec, claim) in enumerate(zip(variant.outputs, claims, strict=True)):
            wrong = compare_layout(claim, spec, j, len(claims))
            if wrong is not None:
                return Judgement(*wrong, float("inf"), worst.tolerance, False), seen
            try:
                report, kept = self._report(trial, j, claim, spec, tolerance_scale)
            except arrays.DecodeError as error:
                return Judgement(Status.INCORRECT_SHAPE, error.message, float("inf"), worst.tolerance, False), seen
            seen.append(kept)
            load = report.load
            if load > worst.load or not report.passed:
                worst = worst._replace(load=max(load, worst.load))
            worst = worst._replace(allclose=worst.allclose and report.kernelbench_allclose)
            if not report.passed and worst.status is None:
                worst = worst._replace(status=Status.INCORRECT_NUMERICAL, reason=report.reason)
        return worst, seen

    @np.errstate(invalid="ignore", over="ignore")
    def probe(self, trial: Trial, partner: Trial, seen: Sequence[Any], partner_seen: Sequence[Any]) -> str:
        """Run the precision probe on a pair of trials; the reason if it fails, else an empty string."""
        for j, (truth, ours, other) in enumerate(zip(trial.truths, seen, partner_seen, strict=True)):
            if truth.kind != "float":
                continue
            report = self._response(trial, partner, j, ours, other)
            if not report.passed:
                return report.reason
        return ""

    def _report(
        self, trial: Trial, j: int, claim: OutputClaim, spec: wire.TensorSpec, tolerance_scale: float
    ) -> tuple[budget.OutputReport, Any]:
        """The judgement on output ``j``, and what the probe needs of it.

        Raises:
            DecodeError: its bytes are no such tensor.
        """
        value = arrays.decode(claim.data.tobytes(), spec.dtype, claim.shape, claim.stride)
        return _judge_value(trial.truths[j], value, trial, spec, tolerance_scale), value

    def _response(self, trial: Trial, partner: Trial, j: int, ours: Any, other: Any) -> budget.BetaReport:
        """The precision probe on output ``j``."""
        truth, theirs = trial.truths[j], partner.truths[j]
        measured = arrays.noise_of(ours, truth.exact, truth.scale)
        return budget.probe_beta(
            ours.astype(np.float64) - other.astype(np.float64),
            truth.exact - theirs.exact,
            truth.scale,
            noise=budget.probe_noise(measured, trial.reductions),
        )


def decode_outputs(variant: Variant, claims: Sequence[OutputClaim]) -> tuple[Judgement, list[np.ndarray]]:
    """Decode one call's outputs and check their layouts only, not their values."""
    decoded: list[np.ndarray] = []
    for j, (spec, claim) in enumerate(zip(variant.outputs, claims, strict=True)):
        wrong = compare_layout(claim, spec, j, len(claims))
        if wrong is not None:
            return Judgement(*wrong, float("inf"), 0.0, False), decoded
        try:
            decoded.append(arrays.decode(claim.data.tobytes(), spec.dtype, claim.shape, claim.stride))
        except arrays.DecodeError as error:
            return Judgement(Status.INCORRECT_SHAPE, error.message, float("inf"), 0.0, False), decoded
    return Judgement(None, "", 0.0, 1.0, True), decoded


def random_scale(truth: Truth, draws: Sequence[np.ndarray], dtype: str) -> np.ndarray | None:
    """The error scale of a random output: that of one draw, but at least two roundings of the largest value drawn.

    None for dtypes that do not round.
    """
    if dtype not in wire.FLOATS:
        return None
    largest = np.max(np.abs(np.stack(draws).astype(np.float64)), axis=0)
    scale: np.ndarray = np.maximum(truth.scale, 2.0 * arrays.unit_roundoff(dtype) * largest)
    return scale


def _judge_value(
    truth: Truth, value: np.ndarray, trial: Trial, spec: wire.TensorSpec, tolerance_scale: float
) -> budget.OutputReport:
    if truth.kind == "float":
        return budget.judge_output(
            value,
            truth.exact,
            truth.scale,
            trial.reductions,
            data=data_of(trial.distribution),
            tolerance_scale=tolerance_scale,
            dtype=spec.dtype,
            ref_low=truth.low,
        )
    if truth.rule is not None:
        values, scale, dim, distinct = truth.rule
        return budget.judge_index(
            value,
            truth.exact,
            values,
            scale,
            trial.reductions,
            dim=dim,
            distinct=distinct,
            tolerance_scale=tolerance_scale,
        )
    return budget.judge_exact(value, truth.exact, truth.scale)


def compare_layout(claim: OutputClaim, spec: wire.TensorSpec, j: int, count: int) -> tuple[Status, str] | None:
    """A wrong dtype or shape of output ``j``, or None."""
    which = "the output" if count == 1 else f"output {j}"
    if claim.shape != spec.shape:
        return Status.INCORRECT_SHAPE, f"{which} has shape {list(claim.shape)}, {list(spec.shape)} expected"
    if claim.dtype != spec.dtype:
        dtype = f"dtype {claim.dtype}" if claim.dtype else "a dtype that is not supported"
        return Status.INCORRECT_DTYPE, f"{which} has {dtype}, {spec.dtype} expected"
    if _repeats(claim.shape, claim.stride) and not _repeats(spec.shape, spec.stride):
        return (
            Status.INCORRECT_SHAPE,
            f"elements of {which} share memory: it cannot be written to as the reference's can",
        )
    return None


def _repeats(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether elements share memory, as in an expanded view."""
    reach = 0
    for step, size in sorted((abs(s), n) for n, s in zip(shape, stride, strict=True) if n > 1):
        if step <= reach:
            return 0 not in shape
        reach += step * (size - 1)
    return False
