"""The check set of a problem: secret inputs and weights, the reference's outputs on them, and how far to trust them.

An oracle worker makes it once a session and ends before any contestant starts. Everything in this module is numpy in
the referee's own memory.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernelwright.errors import InvalidReferenceError, UsageError
from kernelwright.evaluator.accuracy import arrays, budget, distributions, generators
from kernelwright.evaluator.accuracy.quantiles import like_slots
from kernelwright.evaluator.accuracy.trials import (
    ARCHIVED,
    CANARY,
    OWN,
    PROBES,
    Admission,
    CheckSet,
    Trial,
    Truth,
    Variant,
    data_of,
    has_few_numbers,
    is_structured,
    read_tensor,
    write_tensor,
)
from kernelwright.evaluator.host.client import Client
from kernelwright.evaluator.truth.errors import reference_error
from kernelwright.evaluator.truth.oracle_client import TRUTH_TIMEOUT_S, Asker
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.wire.calls import CallPlan
from kernelwright.evaluator.wire.claims import WorkerFailed
from kernelwright.records import DeviceClass, InputDomain, InputGenerator, KnobValue, Problem
from kernelwright.records.problems import archive_id
from kernelwright.sandbox import SharedMemory

_DRAWS_OF_ITS_OWN = 2  # trials on the problem's own get_inputs with the first weights
WEIGHT_DRAWS = 3  # states that weights are switched between while a candidate is checked and timed
RANDOM_DRAWS = 48  # calls on the same inputs that give a random reference's distribution
_RANDOM_ELSEWHERE = 4  # input distributions for a random reference in all variants after the first
_MARGIN = 64  # bytes of canary after each input of a slot
_COTANGENT = InputDomain(fill="normal", low=-4.0, high=4.0)
_ANYTHING = InputDomain(fill="normal")
_SEED = InputDomain(fill="uniform", low=0, high=2**31 - 1)
_KEPT = 0.99  # share of weights that stay in the last draw: a kernel that compares a few weights sees no change


# ------------------------------------------------------------------------------------------------ making it


class OracleSession:
    """Drives one oracle worker through one problem."""

    def __init__(self, client: Client, problem: Problem, trials: int, asker: Asker) -> None:
        """``client`` has loaded the problem's source; ``asker`` asks it."""
        self._client = client
        self._asker = asker
        self._problem = problem
        self._trials = trials
        self._random = problem.meta.randomness == "distribution"
        self._rng = distributions.secret_rng(secrets.randbits(128))

    def check_set(self, device_class: DeviceClass, archive: Sequence[InputGenerator] = ()) -> CheckSet:
        """Describe the variants, draw all inputs and compute the reference's outputs.

        Args:
            archive: generators whose draws become trials, too, on every variant on which the reference is well defined
                for them.

        Raises:
            InvalidReferenceError: the reference does not load or run, or cannot be judged as the problem declares it.
        """
        variants, trials, archived = [], [], []
        read: tuple[int, ...] = ()
        reserve: tuple[Trial, ...] = ()
        flops = steps = 0
        for i, constants in enumerate(self._problem.meta.variants_for(device_class)):
            try:
                variant = self._describe(constants)
                variant, found, kept = self._trials_of(variant, full=i == 0)
                reserve = reserve or kept
                if i == 0:
                    read = self._read(variant, found[0])
                    flops, steps = self._work(variant, found[0])
                drawn = (self._generated(variant, generator) for generator in archive)
                archived.append(tuple(trial for trial, reason in drawn if trial is not None and not reason))
            except WorkerFailed as failed:
                raise reference_error(self._problem, failed, constants, self._client.tail()) from None
            variants.append(variant)
            trials.append(found)
        far, assumed = self._assume(variants[-1])  # the last request: the worker may die of it
        trials[-1] = (*trials[-1], *far)
        name, used = secrets.token_hex(8), archive_id(archive) if any(archived) else ""
        return CheckSet(
            name, tuple(variants), tuple(trials), reserve, flops, steps, read, tuple(archived), used, assumed
        )

    def _assume(self, variant: Variant) -> tuple[tuple[Trial, ...], str]:
        """Trials with all float inputs of undeclared domain far below and above zero; and the assumptions in words.

        These trials expose kernels that start a maximum at some constant. They are left out if the reference is not
        well defined on such numbers (a logarithm of negative ones).
        """
        told = [
            (name, spec, domain)
            for name, spec, domain in zip(variant.names, variant.inputs, variant.domains, strict=False)
            if isinstance(spec, wire.TensorSpec) and spec.dtype in wire.FLOATS
        ]
        declared = self._problem.meta.inputs
        unknown = [(spec, name) for name, spec, _ in told if name not in declared]
        endless = [name for name, _, d in told if name in declared and d.fill != "structured" and _is_endless(d)]
        reach = f"{distributions.ASSUMED_REACH:,.0f}"
        said = [f"{', '.join(endless)}: no bound declared, so -{reach} to {reach} was assumed"] if endless else []
        trials: list[Trial] = []
        if unknown and not self._random:
            for name in distributions.FAR:
                trials += self._far(variant, name, [spec for spec, _ in unknown])
            where = f"and from -{reach} to {reach}" if trials else "alone (far from zero the reference is not defined)"
            names = ", ".join(name for _, name in unknown)
            said.append(f"{names}: no domain declared, so kernels were asked on what get_inputs draws {where}")
        return tuple(trials), "; ".join(said)

    def _far(self, variant: Variant, name: str, specs: Sequence[wire.TensorSpec]) -> list[Trial]:
        try:
            data = self._draw(variant)
            for spec in specs:
                shape = spec.shape if spec.contiguous else (spec.elements,)
                write_tensor(data, spec, distributions.make(name, shape, spec.dtype, _ANYTHING, self._rng))
            trial = self._asker.trial(variant, name, data)
        except (WorkerFailed, InvalidReferenceError):
            return []
        return [] if _ill_defined(trial, variant, self._problem.meta.tolerance.scale) else [trial]

    def admit(
        self, wanted: Sequence[InputGenerator], device_class: DeviceClass, draws: int = 2
    ) -> tuple[CheckSet, tuple[Admission, ...]]:
        """Find the variants on which the reference is well defined for all of ``draws`` draws of each generator.

        Well defined means that its outputs are finite, its own precision agrees with float64 within the error budget,
        and honest rounding does not spoil the answer. The returned check set has archived trials only: by variant, the
        last draw of each admitted generator.

        Raises:
            InvalidReferenceError: the reference cannot be used.
        """
        reasons: list[list[str]] = [[] for _ in wanted]
        variants, archived = [], []
        for constants in self._problem.meta.variants_for(device_class):
            try:
                variant = self._draw_weights(self._describe(constants))
                trials = []
                for at, generator in enumerate(wanted):
                    reason, trial = "", None
                    for _ in range(draws):
                        trial, reason = self._generated(variant, generator)
                        if reason:
                            break
                    reasons[at].append(reason)
                    trials += [trial] if trial is not None and not reason else []
            except WorkerFailed as failed:
                raise reference_error(self._problem, failed, constants, self._client.tail()) from None
            variants.append(variant)
            archived.append(tuple(trials))
        admissions = tuple(Admission(g, tuple(r)) for g, r in zip(wanted, reasons, strict=True))
        kept = [admission.generator for admission in admissions if admission.admitted]
        empty = tuple(() for _ in variants)
        checks = CheckSet(secrets.token_hex(8), tuple(variants), empty, (), 0, 0, (), tuple(archived), archive_id(kept))
        return checks, admissions

    def _generated(self, variant: Variant, generator: InputGenerator) -> tuple[Trial | None, str]:
        """A trial on a generator's inputs, and the reason why it cannot be used, or ""."""
        if self._random:
            return None, "the reference is random: its distribution is judged on the fixed inputs alone"
        try:
            data = self._compose_by(variant, generator)
        except UsageError as error:
            return None, error.message
        trial = self._asker.trial(variant, ARCHIVED, data)._replace(drawn_by=generator.describe())
        return trial, _ill_defined(trial, variant, self._problem.meta.tolerance.scale)

    def _compose_by(self, variant: Variant, generator: InputGenerator) -> np.ndarray:
        """Draw inputs by a generator. Inputs that it does not name are drawn plainly.

        Raises:
            UsageError: the generator names an input that the problem lacks, or that only the problem itself can make.
        """
        data = self._compose(variant, "normal")
        placed = {
            name: (spec, domain)
            for name, spec, domain in zip(variant.names, variant.inputs, variant.domains, strict=False)
            if isinstance(spec, wire.TensorSpec)
        }
        for name, pattern in generator.inputs.items():
            if name not in placed:
                raise UsageError(f"the problem has no tensor input {name!r}", hint=f"it has {', '.join(placed)}")
            spec, domain = placed[name]
            shape = spec.shape if spec.contiguous else (spec.elements,)
            write_tensor(data, spec, generators.draw(pattern, shape, spec.dtype, domain, self._rng))
        return data

    def _describe(self, constants: Mapping[str, KnobValue]) -> Variant:
        meta = self._problem.meta
        reply = self._client.request(
            "describe",
            timeout_s=TRUTH_TIMEOUT_S,
            variant=dict(constants),
            seed=secrets.randbits(31),
            backward=meta.backward,
            randomness=meta.randomness,
        )
        if reply["fault"]:
            raise self._asker.invalid(str(reply["fault"]), "forward")
        inputs: list[Any] = []
        tensors = [wire.spec_from_json(i["tensor"]) for i in reply["inputs"] if "tensor" in i]
        specs, slot_bytes = wire.place(tensors, margin=_MARGIN)
        placed = iter(specs)
        for item in reply["inputs"]:
            inputs.append(next(placed) if "tensor" in item else item["value"])
        state = [wire.spec_from_json(s) for s in reply["state"]]
        names = tuple(str(n) for n in reply["names"])
        plan = CallPlan.from_json(reply["plan"])
        written, written_bytes = wire.place([inputs[i] for i in plan.written], margin=_MARGIN)
        domains = [meta.inputs.get(n, InputDomain()) for n in names]
        return Variant(
            constants=dict(constants),
            init=reply["init"],
            inputs=tuple(inputs),
            names=names,
            domains=(*domains, *([_COTANGENT] * len(plan.cotangents)), *([_SEED] * plan.seeded)),
            state=tuple(state),
            required=tuple(str(n) for n in reply["required"]),
            outputs=tuple(wire.spec_from_json(s) for s in reply["outputs"]),
            plan=plan,
            slot_bytes=slot_bytes,
            written=tuple(written),
            written_bytes=written_bytes if plan.written else 0,
            state_bytes=wire.place(state)[1],
            weights=(),
            structure=str(reply["structure"]),
        )

    def _trials_of(self, variant: Variant, *, full: bool) -> tuple[Variant, tuple[Trial, ...], tuple[Trial, ...]]:
        """The variant with its weights, its trials, and (if ``full``) the trials reserved for timing."""
        variant = self._draw_weights(variant)
        if self._random:
            return variant, self._random_trials(variant, full=full), ()
        reserve: tuple[Trial, ...] = ()
        trials = [self._asker.trial(variant, OWN, self._draw(variant))]
        if full:
            trials += [self._asker.trial(variant, OWN, self._draw(variant)) for _ in range(_DRAWS_OF_ITS_OWN - 1)]
        for name in _distributions_of(variant)[: max(self._trials, 1)]:
            trial = self._asker.trial(variant, name, self._compose(variant, name))
            if name != "normal" or _well_conditioned(trial, variant):
                trials.append(trial)
        trials += self._probes(variant, at=len(trials))
        if full:
            reserve = (self._asker.trial(variant, OWN, self._draw(variant)), *self._probes(variant, at=1))
        if variant.required and self._problem.meta.weights == "inputs":
            for draw in range(1, WEIGHT_DRAWS):
                variant = self._draw_weights(variant, kept=_KEPT if draw == WEIGHT_DRAWS - 1 else 0.0)
                trials.append(self._asker.trial(variant, OWN, self._draw(variant)))
        return variant, tuple(trials), reserve

    def _random_trials(self, variant: Variant, *, full: bool) -> tuple[Trial, ...]:
        """Trials of a reference whose distribution is judged: outputs of many calls on the same inputs."""
        wanted = (
            _distributions_of(variant)[: max(self._trials, 1)]
            if full
            else _distributions_of(variant)[:_RANDOM_ELSEWHERE]
        )
        own = self._draws(variant, OWN, self._draw(variant))
        return (own, *(self._draws(variant, name, self._compose(variant, name)) for name in wanted))

    def _draws(self, variant: Variant, distribution: str, data: np.ndarray) -> Trial:
        trial = self._asker.trial(variant, distribution, data)
        arrays = self._asker.collect(
            self._asker.ask("draws", variant, data, count=RANDOM_DRAWS, seed=secrets.randbits(31))
        )
        self._asker.keep(*arrays)
        width = len(variant.outputs)
        return trial._replace(draws=tuple(tuple(arrays[k : k + width]) for k in range(0, len(arrays), width)))

    def _read(self, variant: Variant, trial: Trial) -> tuple[int, ...]:
        """Positions of the float inputs in which every element matters."""
        reply = self._asker.ask("reads", variant, self._asker.data_of(trial), seed=secrets.randbits(31))
        visible = len(variant.inputs) - variant.plan.hidden
        return tuple(i for i in reply["read"] if type(i) is int and 0 <= i < visible)

    def _work(self, variant: Variant, trial: Trial) -> tuple[int, int]:
        reply = self._asker.ask("work", variant, self._asker.data_of(trial))
        return int(reply["flops"]), int(reply["steps"])

    def _draw_weights(self, variant: Variant, kept: float = 0.0) -> Variant:
        """The variant with one more weight draw. A share ``kept`` of each tensor's numbers stays as before."""
        memory = SharedMemory.create(max(variant.state_bytes, wire.ALIGNMENT), "weights")
        try:
            self._client.request(
                "export_weights",
                timeout_s=TRUTH_TIMEOUT_S,
                fds=[memory.fd],
                size=max(variant.state_bytes, wire.ALIGNMENT),
                state=[wire.spec_to_json(s) for s in variant.state],
                seed=secrets.randbits(31),
                kept=kept,
            )
            drawn = np.frombuffer(memory.view, dtype=np.uint8).copy()
        finally:
            memory.close()
        return variant._replace(weights=(*variant.weights, drawn))

    def _draw(self, variant: Variant) -> np.ndarray:
        """One draw of the problem's own inputs. Normal and uniform float32 inputs get the probe format."""
        memory = SharedMemory.create(variant.slot_bytes, "inputs")
        try:
            np.frombuffer(memory.view, dtype=np.uint8)[:] = CANARY
            self._client.request(
                "export_inputs",
                timeout_s=TRUTH_TIMEOUT_S,
                fds=[memory.fd],
                size=variant.slot_bytes,
                inputs=variant.inputs_json(),
                seeds=[secrets.randbits(31)],
            )
            data = np.frombuffer(memory.view, dtype=np.uint8).copy()
        finally:
            memory.close()
        visible = len(variant.inputs) - variant.plan.hidden
        for position, (spec, domain) in enumerate(zip(variant.inputs, variant.domains, strict=True)):
            if not isinstance(spec, wire.TensorSpec) or domain.fill == "structured" or spec.elements == 0:
                continue
            if position >= visible:
                write_tensor(data, spec, distributions.make("normal", spec.shape, spec.dtype, domain, self._rng))
            elif domain.fill in ("normal", "uniform") and spec.dtype == "float32":
                values = read_tensor(data, spec)
                write_tensor(data, spec, distributions.probe_format(values, self._rng, domain.low, domain.high))
        return data

    def _compose(self, variant: Variant, name: str) -> np.ndarray:
        """Draw inputs of one distribution. Others get the plainest that they admit; structured ones stay as drawn."""
        data = self._draw(variant) if is_structured(variant) else np.full(variant.slot_bytes, CANARY, dtype=np.uint8)
        for spec, domain in zip(variant.inputs, variant.domains, strict=True):
            if not isinstance(spec, wire.TensorSpec) or domain.fill == "structured" or spec.elements == 0:
                continue
            admitted = distributions.distributions_for(domain, spec.dtype)
            shape = spec.shape if spec.contiguous else (spec.elements,)
            chosen = name if name in admitted and domain is not _COTANGENT else admitted[0]
            values = self._asker.drawn(chosen, spec, domain)
            if values is None and spec.dtype == "float32":
                values = like_slots(chosen, shape, domain, self._rng)
            elif values is None:
                values = distributions.make(chosen, shape, spec.dtype, domain, self._rng)
            write_tensor(data, spec, values)
        return data

    def _probes(self, variant: Variant, at: int) -> list[Trial]:
        """Pairs of trials that differ only below the precision of TF32 and narrower, one float32 input at a time."""
        trials: list[Trial] = []
        few = has_few_numbers(variant) and variant.plan.plain
        tensors = [
            (s, d) for s, d in zip(variant.inputs, variant.domains, strict=True) if isinstance(s, wire.TensorSpec)
        ]
        name = distributions.plain((spec.dtype, domain) for spec, domain in tensors)
        for position, (spec, domain) in enumerate(zip(variant.inputs, variant.domains, strict=True)):
            if not isinstance(spec, wire.TensorSpec) or domain.fill == "structured" or spec.dtype != "float32":
                continue
            first = self._compose(variant, name)
            x = read_tensor(first, spec)
            directions = self._asker.directions(variant, first, position) if few else None
            coded, partner = distributions.probe_pair(x, self._rng, domain.low, domain.high, directions)
            second = first.copy()
            write_tensor(first, spec, coded)
            write_tensor(second, spec, partner)
            trials.append(self._asker.trial(variant, PROBES[name], first))
            trials.append(self._asker.trial(variant, PROBES[name], second)._replace(partner=at + len(trials) - 1))
        return trials


def _is_endless(domain: InputDomain) -> bool:
    return not (math.isfinite(domain.low) and math.isfinite(domain.high))


def _distributions_of(variant: Variant) -> list[str]:
    """The distributions that at least one input admits, in order, each once."""
    names: dict[str, None] = {}
    for spec, domain in zip(variant.inputs, variant.domains, strict=True):
        if isinstance(spec, wire.TensorSpec) and domain.fill != "structured":
            names.update(dict.fromkeys(distributions.distributions_for(domain, spec.dtype)))
    return list(names)


@np.errstate(invalid="ignore", over="ignore")
def _ill_defined(trial: Trial, variant: Variant, tolerance_scale: float) -> str:
    """Why the reference is not well defined on a trial, or ""."""
    if not _well_conditioned(trial, variant):
        return "honest rounding alone spoils the answer"
    for truth, spec in zip(trial.truths, variant.outputs, strict=True):
        if truth.kind != "float":
            continue
        finite, largest = _reach(truth)
        if not finite:
            return "the reference is not finite"
        if largest > arrays.largest(spec.dtype):
            return "the answer overflows its dtype"
        data = data_of(trial.distribution)
        if truth.elsewhere is not None:
            sums = truth.elsewhere.reference_sums(peaks=data == "equal")
        else:
            sums = arrays.error_sums(truth.low, truth.exact, truth.scale, dtype=spec.dtype, peaks=data == "equal")
        report = budget.judge_sums(sums, trial.reductions, data=data, tolerance_scale=tolerance_scale)
        if not report.passed:
            return f"the reference's own precision does not agree with float64: {report.reason}"
    return ""


def _well_conditioned(trial: Trial, variant: Variant) -> bool:
    """Whether precision can be judged on this draw. (If not on other data, its wide error scale allows for that.)"""
    return not any(
        truth.kind == "float" and _is_ill_conditioned(truth, spec.dtype)
        for truth, spec in zip(trial.truths, variant.outputs, strict=True)
    )


def _is_ill_conditioned(truth: Truth, dtype: str) -> bool:
    if truth.elsewhere is not None:
        return arrays.is_ill_conditioned(truth.elsewhere.facts.median, truth.elsewhere.facts.rms, dtype)
    return arrays.ill_conditioned(truth.scale, truth.exact, dtype)


def _reach(truth: Truth) -> tuple[bool, float]:
    """Whether all of a float truth and of the reference's own output is finite, and its largest absolute value."""
    if truth.elsewhere is not None:
        return truth.elsewhere.facts.finite, truth.elsewhere.facts.largest
    finite = bool(np.all(np.isfinite(truth.exact)) and np.all(np.isfinite(truth.low)))
    return finite, float(np.max(np.abs(truth.exact), initial=0.0))
