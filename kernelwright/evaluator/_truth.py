"""The check set of a problem: secret inputs and weights, what the reference answers on them, and how far to trust it.

Made once a session by an oracle worker that is gone before any contestant starts. Everything here is numpy in the
referee's own memory.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelwright.errors import InvalidReferenceError, KernelwrightError, MachineError
from kernelwright.evaluator import _budget as budget
from kernelwright.evaluator import _distributions as distributions
from kernelwright.evaluator import _wire as wire
from kernelwright.evaluator._client import Client, WorkerFailed
from kernelwright.evaluator._clock import OutputClaim
from kernelwright.records import DeviceClass, InputDomain, KnobValue, Problem, Status, sha256_text
from kernelwright.sandbox import SharedMemory

_MONTE_CARLO_RUNS = 8
_DRAWS_OF_ITS_OWN = 2  # trials on the problem's own get_inputs with the first weights
_STRUCTURED_BANK = 8  # draws of get_inputs kept for timed slots that cannot be drawn by the referee
_TRUTH_TIMEOUT_S = 120.0
_NORMAL = frozenset({"own", "normal", "probe"})  # judged without the wider tails of other distributions


class Variant(NamedTuple):
    """One shape variant of a problem as the oracle described it."""

    constants: dict[str, KnobValue]
    init: list[Any]  # constructor arguments, encoded
    inputs: tuple[wire.TensorSpec | Any, ...]  # a spec with its offset inside a slot, or an encoded plain value
    names: tuple[str, ...]
    domains: tuple[InputDomain, ...]
    state: tuple[wire.TensorSpec, ...]
    parameters: int
    outputs: tuple[wire.TensorSpec, ...]
    slot_bytes: int
    state_bytes: int
    weights: tuple[np.ndarray, ...]  # drawn states, each state_bytes of uint8

    def inputs_json(self) -> list[Any]:
        """The inputs' layout for a worker."""
        return [
            {"tensor": wire.spec_to_json(i)} if isinstance(i, wire.TensorSpec) else {"value": i} for i in self.inputs
        ]

    def capacity(self) -> list[int]:
        """Bytes that each output may span: twice the reference's, so that a wrong dtype can still be read."""
        return [2 * spec.span_bytes + 64 for spec in self.outputs]


class Truth(NamedTuple):
    """What one output of one trial must be."""

    kind: str
    low: np.ndarray
    exact: np.ndarray
    scale: np.ndarray
    rule: tuple[np.ndarray, np.ndarray, int, bool] | None  # values, their scale, dimension, distinct


class Trial(NamedTuple):
    """One draw: its inputs as slot bytes, the weights that it was computed with, and the truths of its outputs.

    ``partner`` is the trial whose inputs differ in the bits of one input that lower precision does not see.
    """

    distribution: str
    weights: int
    data: np.ndarray
    reduction: int
    truths: tuple[Truth, ...]
    partner: int | None = None


class CheckSet(NamedTuple):
    """All variants with their trials. ``id`` names it without giving anything away."""

    id: str
    variants: tuple[Variant, ...]
    trials: tuple[tuple[Trial, ...], ...]  # by variant
    structured: tuple[np.ndarray, ...]  # draws of get_inputs of the first variant, slot bytes


class Judgement(NamedTuple):
    """What a comparison found; ``load`` is the error as a share of the budget."""

    status: Status | None
    reason: str
    load: float
    tolerance: float
    allclose: bool


# ------------------------------------------------------------------------------------------------ making it


class OracleSession:
    """Drives one oracle worker through one problem."""

    def __init__(self, client: Client, problem: Problem, trials: int) -> None:
        """``client`` has loaded the problem's source already."""
        self._client = client
        self._problem = problem
        self._trials = trials
        self._rng = distributions.secret_rng(secrets.randbits(128))

    def check_set(self, device_class: DeviceClass) -> CheckSet:
        """Describe, draw and compute everything.

        Raises:
            InvalidReferenceError: the reference does not load or run, is random, or writes its own inputs.
        """
        variants, trials = [], []
        structured: tuple[np.ndarray, ...] = ()
        for i, constants in enumerate(self._problem.meta.variants_for(device_class)):
            try:
                variant = self._describe(constants)
                variant, found = self._trials_of(variant, full=i == 0)
                if i == 0 and _is_structured(variant):
                    structured = tuple(self._draw(variant) for _ in range(_STRUCTURED_BANK))
            except WorkerFailed as failed:
                raise reference_error(self._problem, failed, constants) from None
            variants.append(variant)
            trials.append(found)
        name = sha256_text(b"".join(t.data.tobytes()[:4096] for group in trials for t in group))[:16]
        return CheckSet(name, tuple(variants), tuple(trials), structured)

    def _describe(self, constants: Mapping[str, KnobValue]) -> Variant:
        reply = self._client.request(
            "describe", timeout_s=_TRUTH_TIMEOUT_S, variant=dict(constants), seed=secrets.randbits(31)
        )
        if reply["random"]:
            raise self._invalid("two runs on the same inputs differ: the reference is random", "forward")
        if reply["mutates"]:
            raise self._invalid(f"forward writes its own inputs {reply['mutates']}", "forward")
        inputs: list[Any] = []
        specs, slot_bytes = wire.place([wire.spec_from_json(i["tensor"]) for i in reply["inputs"] if "tensor" in i])
        placed = iter(specs)
        for item in reply["inputs"]:
            inputs.append(next(placed) if "tensor" in item else item["value"])
        state = [wire.spec_from_json(s) for s in reply["state"]]
        _, state_bytes = wire.place(state)
        names = tuple(str(n) for n in reply["names"])
        return Variant(
            constants=dict(constants),
            init=reply["init"],
            inputs=tuple(inputs),
            names=names,
            domains=tuple(self._problem.meta.inputs.get(n, InputDomain()) for n in names),
            state=tuple(state),
            parameters=int(reply["parameters"]),
            outputs=tuple(wire.spec_from_json(s) for s in reply["outputs"]),
            slot_bytes=slot_bytes,
            state_bytes=state_bytes,
            weights=(),
        )

    def _trials_of(self, variant: Variant, *, full: bool) -> tuple[Variant, tuple[Trial, ...]]:
        variant = self._draw_weights(variant)
        trials = [self._truth(variant, "own", self._draw(variant))]
        if full:
            trials += [self._truth(variant, "own", self._draw(variant)) for _ in range(_DRAWS_OF_ITS_OWN - 1)]
        wanted = _distributions_of(variant)[: None if full else 1]
        for name in wanted[: max(self._trials, 1)]:
            trial = self._truth(variant, name, self._compose(variant, name))
            if name != "normal" or _well_conditioned(trial, variant):
                trials.append(trial)
        if full:
            trials += self._probes(variant, at=len(trials))
            if variant.parameters and self._problem.meta.weights == "inputs":
                variant = self._draw_weights(variant)
                trials.append(self._truth(variant, "own", self._draw(variant)))
        return variant, tuple(trials)

    def _draw_weights(self, variant: Variant) -> Variant:
        memory = SharedMemory.create(max(variant.state_bytes, wire.ALIGNMENT), "weights")
        try:
            self._client.request(
                "export_weights",
                timeout_s=_TRUTH_TIMEOUT_S,
                fds=[memory.fd],
                size=max(variant.state_bytes, wire.ALIGNMENT),
                state=[wire.spec_to_json(s) for s in variant.state],
                seed=secrets.randbits(31),
            )
            drawn = np.frombuffer(memory.view, dtype=np.uint8).copy()
        finally:
            memory.close()
        return variant._replace(weights=(*variant.weights, drawn))

    def _draw(self, variant: Variant) -> np.ndarray:
        """One draw of the problem's own inputs."""
        memory = SharedMemory.create(variant.slot_bytes, "inputs")
        try:
            self._client.request(
                "export_inputs",
                timeout_s=_TRUTH_TIMEOUT_S,
                fds=[memory.fd],
                size=variant.slot_bytes,
                inputs=variant.inputs_json(),
                seed=secrets.randbits(31),
            )
            return np.frombuffer(memory.view, dtype=np.uint8).copy()
        finally:
            memory.close()

    def _compose(self, variant: Variant, name: str) -> np.ndarray:
        """Inputs of one distribution; inputs that do not admit it get their plainest one, structured ones their own."""
        data = self._draw(variant) if _is_structured(variant) else np.zeros(variant.slot_bytes, dtype=np.uint8)
        for spec, domain in zip(variant.inputs, variant.domains, strict=True):
            if not isinstance(spec, wire.TensorSpec) or domain.fill == "structured" or spec.elements == 0:
                continue
            admitted = distributions.distributions_for(domain, spec.dtype)
            shape = spec.shape if spec.contiguous else (spec.elements,)
            chosen = name if name in admitted else admitted[0]
            write_tensor(data, spec, distributions.make(chosen, shape, spec.dtype, domain, self._rng))
        return data

    def _probes(self, variant: Variant, at: int) -> list[Trial]:
        """Pairs of trials that differ only below the precision of TF32 and narrower, one float32 input at a time."""
        trials: list[Trial] = []
        for spec, domain in zip(variant.inputs, variant.domains, strict=True):
            if not isinstance(spec, wire.TensorSpec) or domain.fill == "structured" or spec.dtype != "float32":
                continue
            first = self._compose(variant, distributions.distributions_for(domain)[0])
            x = read_tensor(first, spec)
            coded, partner = distributions.probe_pair(x, self._rng, domain.low, domain.high)
            second = first.copy()
            write_tensor(first, spec, coded)
            write_tensor(second, spec, partner)
            trials.append(self._truth(variant, "probe", first))
            trials.append(self._truth(variant, "probe", second)._replace(partner=at + len(trials) - 1))
        return trials

    def _truth(self, variant: Variant, distribution: str, data: np.ndarray) -> Trial:
        given = SharedMemory.create(variant.slot_bytes, "inputs")
        try:
            np.frombuffer(given.view, dtype=np.uint8)[:] = data
            reply = self._client.request(
                "truth",
                timeout_s=_TRUTH_TIMEOUT_S,
                fds=[given.fd],
                size=variant.slot_bytes,
                inputs=variant.inputs_json(),
                runs=_MONTE_CARLO_RUNS if distribution in _NORMAL else _MONTE_CARLO_RUNS // 2,
                seed=secrets.randbits(31),
                unit_roundoff=self._unit_roundoff(variant),
            )
            arrays = self._collect(reply)
        finally:
            given.close()
        truths: list[Truth] = []
        at = 0
        for item in reply["outputs"]:
            truths.append(self._make_truth(item, arrays[at : at + item["tensors"]], variant.outputs[len(truths)].dtype))
            at += item["tensors"]
        return Trial(distribution, len(variant.weights) - 1, data, int(reply["reduction"]), tuple(truths))

    def _collect(self, reply: Mapping[str, Any]) -> list[np.ndarray]:
        size = int(reply["size"])
        if not 0 < size < 8 << 30:
            raise MachineError("the reference's outputs take more than 8 GiB", hint="use smaller shapes")
        memory = SharedMemory.create(size, "truth")
        try:
            self._client.request("collect", timeout_s=_TRUTH_TIMEOUT_S, fds=[memory.fd], size=size)
            data = np.frombuffer(memory.view, dtype=np.uint8).copy()
        finally:
            memory.close()
        return [read_tensor(data, wire.spec_from_json(s)) for s in reply["tensors"]]

    def _make_truth(self, item: Mapping[str, Any], arrays: Sequence[np.ndarray], dtype: str) -> Truth:
        low, exact, deviation, rows = arrays[:4]
        if item["kind"] == "float":
            roundoff = budget.unit_roundoff(dtype, self._problem.meta.tolerance.reduced_precision)
            scale: np.ndarray = budget.scale(deviation, rows, exact, dtype, roundoff)
        else:
            scale = deviation
        rule = (arrays[4], arrays[5], int(item["dim"]), bool(item["distinct"])) if item["kind"] == "index" else None
        return Truth(str(item["kind"]), low, exact, scale, rule)

    def _unit_roundoff(self, variant: Variant) -> float:
        floats = [s.dtype for s in (*variant.outputs, *variant.state) if s.dtype in wire.FLOATS]
        return budget.unit_roundoff(floats[0] if floats else "float32", self._problem.meta.tolerance.reduced_precision)

    def _invalid(self, message: str, stage: str) -> InvalidReferenceError:
        return InvalidReferenceError(
            f"{self._problem.id}: {message}",
            hint="mend the problem file",
            problem=self._problem.id,
            stage=stage,
            line=None,
        )


def reference_error(
    problem: Problem, failed: WorkerFailed, constants: Mapping[str, KnobValue] | None = None, output: str = ""
) -> KernelwrightError:
    """What the oracle or a twin died of: the problem's fault with its line, or the machine's where none is to be seen.

    ``output`` is the tail of what the worker printed; it is what a worker that never came up has to say.
    """
    failure = failed.failure
    if failure.kind == "died" and failure.exit is not None and failure.exit.reason == "exit":
        return MachineError(
            f"the reference's worker {failure.message}", hint=output[-500:].strip() or "try: kernelwright doctor"
        )
    where = "" if failure.line is None else f", line {failure.line}"
    variant = f" (variant {dict(constants)})" if constants else ""
    return InvalidReferenceError(
        f"{problem.id}{where}: {failure.message}{variant}",
        hint="the reference itself does not work; mend the problem file",
        problem=problem.id,
        line=failure.line,
        stage=failure.phase,
    )


def read_tensor(data: np.ndarray, spec: wire.TensorSpec) -> np.ndarray:
    """The tensor of ``spec`` out of slot or arena bytes, as a private dense array (bfloat16 as float32)."""
    raw = data[spec.offset : spec.offset + spec.span_bytes]
    return budget.decode(raw.tobytes(), spec.dtype, spec.shape, spec.stride)


def write_tensor(data: np.ndarray, spec: wire.TensorSpec, values: np.ndarray) -> None:
    """Writes ``values`` (dense, or flat over the span) into slot bytes."""
    if values.size == spec.elements:
        raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        data[spec.offset : spec.offset + raw.size] = raw
        return
    view = np.lib.stride_tricks.as_strided(
        data[spec.offset : spec.offset + spec.span_bytes].view(values.dtype),
        spec.shape,
        [s * values.itemsize for s in spec.stride],
    )
    view[...] = values


def _is_structured(variant: Variant) -> bool:
    return any(
        isinstance(s, wire.TensorSpec) and d.fill == "structured"
        for s, d in zip(variant.inputs, variant.domains, strict=True)
    )


def _distributions_of(variant: Variant) -> list[str]:
    """The distributions that at least one input admits, in order, each once."""
    names: dict[str, None] = {}
    for spec, domain in zip(variant.inputs, variant.domains, strict=True):
        if isinstance(spec, wire.TensorSpec) and domain.fill != "structured":
            names.update(dict.fromkeys(distributions.distributions_for(domain, spec.dtype)))
    return list(names)


def _well_conditioned(trial: Trial, variant: Variant) -> bool:
    """Whether precision can be judged on this draw (elsewhere the wide error scale takes care of itself)."""
    return not any(
        truth.kind == "float" and budget.ill_conditioned(truth.scale, truth.exact, spec.dtype)
        for truth, spec in zip(trial.truths, variant.outputs, strict=True)
    )


# ------------------------------------------------------------------------------------------------ using it


def judge_trial(
    trial: Trial, variant: Variant, claims: Sequence[OutputClaim], tolerance_scale: float
) -> tuple[Judgement, list[np.ndarray]]:
    """Compare one call's outputs with the truth; also hands back the decoded outputs."""
    worst = Judgement(None, "", 0.0, budget.tolerance(trial.reduction, tolerance_scale), True)
    decoded: list[np.ndarray] = []
    for j, (truth, spec, claim) in enumerate(zip(trial.truths, variant.outputs, claims, strict=True)):
        wrong = compare_layout(claim, spec, j, len(claims))
        if wrong is not None:
            return Judgement(*wrong, float("inf"), worst.tolerance, False), decoded
        try:
            value = budget.decode(claim.data.tobytes(), spec.dtype, claim.shape, claim.stride)
        except budget.DecodeError as error:
            return Judgement(Status.INCORRECT_SHAPE, error.message, float("inf"), worst.tolerance, False), decoded
        decoded.append(value)
        report = _judge_value(truth, value, trial, spec, tolerance_scale)
        load = report.load
        if load > worst.load or not report.passed:
            worst = worst._replace(load=max(load, worst.load))
        worst = worst._replace(allclose=worst.allclose and report.kernelbench_allclose)
        if not report.passed and worst.status is None:
            worst = worst._replace(status=Status.INCORRECT_NUMERICAL, reason=report.reason)
    return worst, decoded


def _judge_value(
    truth: Truth, value: np.ndarray, trial: Trial, spec: wire.TensorSpec, tolerance_scale: float
) -> budget.OutputReport:
    if truth.kind == "float":
        return budget.judge_output(
            value,
            truth.exact,
            truth.scale,
            trial.reduction,
            distribution_is_normal=trial.distribution in _NORMAL,
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
            trial.reduction,
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
        return Status.INCORRECT_DTYPE, f"{which} has dtype {claim.dtype or 'unknown'}, {spec.dtype} expected"
    return None


def judge_probe(trial: Trial, partner: Trial, outputs: list[np.ndarray], partner_outputs: list[np.ndarray]) -> str:
    """The precision probe over a pair of trials; a reason where it fails, else an empty string."""
    for truth, other, value, other_value in zip(trial.truths, partner.truths, outputs, partner_outputs, strict=True):
        if truth.kind != "float":
            continue
        report = budget.probe_beta(
            value.astype(np.float64) - other_value.astype(np.float64),
            truth.exact - other.exact,
            truth.scale,
            budget=budget.tolerance(trial.reduction),
        )
        if not report.passed:
            return report.reason
    return ""
