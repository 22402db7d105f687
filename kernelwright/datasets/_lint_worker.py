"""Lint of a problem, worker side: runs it a dozen times and reports weaknesses that would let a bad kernel pass.

Runs in a sandbox only. JSON in, JSON out; no pydantic.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from kernelwright.datasets._lint_trace import Trace, Untraceable, address, redundant_work
from kernelwright.datasets.runtime import (
    LOW_FLOATS,
    NO_DOUBLE,
    ReferenceFault,
    double_twin,
    fault_of,
    in_double,
    load_reference,
    make_init_inputs,
    make_inputs,
    make_model,
    mean_device,
    means_device,
    randomise_parameters,
    require_alike,
    run_forward,
)

SEED = 20_241
MIN_CALL_US = 5.0
MIN_RELATIVE_RANGE = 1e-3
MIN_MAGNITUDE = 1e-4  # the absolute tolerance of KernelBench: below it, zeros would be "close"
MAX_SATURATED = 0.9
TIMED_CALLS = 20

Tensors = tuple[torch.Tensor, ...]
Finding = dict[str, Any]


def lint(payload: dict[str, Any]) -> dict[str, Any]:
    """Run a problem and report its weaknesses.

    Args:
        payload: ``source`` (the file's text), ``variant`` (constants to set), ``mode`` (``eval`` or ``train``),
            ``randomness`` (``none``, ``seeded`` or ``distribution``: the declared randomness of the output).

    Returns:
        ``findings``: dicts of rule, severity, message, line. ``fault``: None, or stage, line and message of the fault
        that makes the reference unusable. ``facts``: call time in us, sizes in bytes, output shapes.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            return _Run(payload).report()
    except Exception as error:  # noqa: BLE001 - the worker's boundary: a problem's code may raise anything
        fault = fault_of(error, "forward")
        finding = _finding("invalid-reference", "error", f"{fault.stage}: {fault.message}", fault.line)
        return {"findings": [finding], "fault": fault.to_json(), "facts": {}}
    finally:
        torch.set_num_threads(threads)


class _Run:
    def __init__(self, payload: dict[str, Any]) -> None:
        mode = str(payload.get("mode", "eval"))
        self.randomness = str(payload.get("randomness", "none"))
        self.module = load_reference(payload["source"], payload.get("variant", {}))
        self.mode = mode
        self.model = self.built()
        randomise_parameters(self.model, SEED)
        self.state = copy.deepcopy(self.model.state_dict())
        self.inputs = make_inputs(self.module, SEED + 1)
        self.redrawn = make_inputs(self.module, SEED + 2)
        require_alike(self.module, self.inputs, self.redrawn)
        code = getattr(type(self.model).forward, "__code__", None)
        self.names: Sequence[str] = code.co_varnames[1 : code.co_argcount] if code is not None else ()
        self.line: int | None = code.co_firstlineno if code is not None else None

    def built(self) -> torch.nn.Module:
        """Build the model with its constructor."""
        return make_model(self.module, make_init_inputs(self.module, SEED), mode=self.mode, seed=SEED)

    def report(self) -> dict[str, Any]:
        base = self.run(self.inputs)
        findings = [
            *self.check_device(),
            *self.check_double(),
            *self.check_repeatable(base),
            *self.check_output_values(base),
            *self.check_dependence(base),
            *self.check_side_effects(),
            *self.check_work(),
        ]
        call_us = self.call_us()
        if call_us < MIN_CALL_US:
            message = f"one call takes {call_us:.1f} us, less than can be timed well; use larger shapes"
            findings.append(_finding("too-small", "warning", message))
        facts = {
            "call_us": call_us,
            "input_bytes": sum(t.nbytes for t in self.inputs if isinstance(t, torch.Tensor)),
            "output_bytes": sum(t.nbytes for t in base),
            "output_shapes": [list(t.shape) for t in base],
        }
        for finding in findings:
            finding["line"] = finding["line"] or self.line
        return {"findings": findings, "fault": None, "facts": facts}

    def run(self, inputs: Sequence[Any], seed: int = SEED) -> Tensors:
        """Cloned outputs for copies of the inputs, each time from the same state and RNG seed."""
        self.model.load_state_dict(self.state)
        torch.manual_seed(seed)
        return tuple(output.clone() for output in run_forward(self.model, _copies(inputs)))

    def check_device(self) -> Iterator[Finding]:
        if means_device(self.model):
            message = (
                "forward names a CUDA device; without one, that is pretended, for a microsecond or two at every "
                "operator: a kernel seems faster beside it than it is"
            )
            yield _finding("device-in-forward", "warning", message)

    def check_double(self) -> Iterator[Finding]:
        """Check that the model's float64 twin runs, as it computes the true outputs."""

        def build() -> torch.nn.Module:
            model = self.built()
            if means_device(self.model):
                mean_device(model)
            run_forward(model, _copies(self.inputs))  # the first call makes lazy parameters
            return model

        try:
            self.model.load_state_dict(self.state)
            twin = double_twin(self.model, build)
            with in_double():
                torch.manual_seed(SEED)
                twin(*(_in_double(value) for value in _copies(self.inputs)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the problem's code may raise anything
            fault = fault_of(error, "forward", NO_DOUBLE)
            yield _finding("no-float64", "error", fault.message, fault.line)

    def check_repeatable(self, base: Tensors) -> Iterator[Finding]:
        repeats = _alike(base, self.run(self.inputs))
        random = not _alike(base, self.run(self.inputs, seed=SEED + 99))
        if self.randomness == "none":
            if not repeats:
                yield _finding("nondeterministic", "error", "two runs from the same state gave different outputs")
            elif random:
                yield _finding("random", "error", "the output depends on the random generator: it cannot be compared")
        elif self.randomness == "seeded" and not repeats:
            message = "two runs from the same state and seed gave different outputs, although randomness is seeded"
            yield _finding("nondeterministic", "error", message)
        elif repeats and not random:
            message = f"randomness is declared as {self.randomness}, but the output does not depend on the generator"
            yield _finding("not-random", "warning", message)

    def check_output_values(self, base: Tensors) -> Iterator[Finding]:
        for position, output in enumerate(base):
            which = f"output {position}" if len(base) > 1 else "the output"
            if output.numel() == 0:
                yield _finding("empty-output", "error", f"{which} has no elements")
                continue
            if not output.is_floating_point():
                continue
            if not bool(torch.isfinite(output).all()):
                yield _finding("non-finite", "warning", f"{which} holds NaN or infinity on ordinary inputs")
                continue
            values = output.double()
            if float(values.abs().max()) < MIN_MAGNITUDE:
                message = f"every value of {which} is below {MIN_MAGNITUDE:g}: zeros are close to it"
                yield _finding("tiny-output", "warning", message)
            rms = float(values.square().mean().sqrt())
            if values.numel() > 1 and float(values.std(correction=0)) <= MIN_RELATIVE_RANGE * rms:
                message = f"{which} is nearly constant: its spread is under {MIN_RELATIVE_RANGE:g} of its size"
                yield _finding("tiny-range", "warning", message)
                continue
            share = _saturated(values)
            if values.numel() > 1 and share > MAX_SATURATED:
                message = f"{share:.0%} of {which} has one value: what is computed hardly shows in it"
                yield _finding("saturated", "warning", message)

    def check_dependence(self, base: Tensors) -> Iterator[Finding]:
        if not self.inputs:
            return
        changed = [_perturbed(a, b) for a, b in zip(self.inputs, self.redrawn, strict=True)]
        other = self.run(changed)
        if _alike(base, other):
            yield _finding("constant-output", "error", "the output is the same for different inputs")
            return
        shapes = [[list(output.shape) for output in outputs] for outputs in (base, other)]
        if shapes[0] != shapes[1]:
            message = f"the shape of an output depends on the values of the inputs: {shapes[0]}, then {shapes[1]}"
            yield _finding("shape-of-data", "error", f"{message}; return a tensor whose shape follows from theirs")
            return
        for position, value in enumerate(changed):
            if value is self.inputs[position]:
                continue
            others = [*self.inputs[:position], value, *self.inputs[position + 1 :]]
            if _alike(base, self.run(others)):
                name = self.names[position] if position < len(self.names) else f"number {position}"
                yield _finding("input-unused", "error", f"the output does not depend on input {name}")

    def check_side_effects(self) -> Iterator[Finding]:
        inputs = _copies(self.inputs)
        outputs = run_forward(self.model, inputs)
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        storages = {value.untyped_storage().data_ptr() for value in tensors if value.numel()}
        if any(output.untyped_storage().data_ptr() in storages for output in outputs):
            yield _finding(
                "output-alias", "warning", "the output shares memory with an input: there is nothing to compute"
            )
        before = tuple(value for value in self.inputs if isinstance(value, torch.Tensor))
        if not _alike(before, tuple(tensors), exact=True):
            yield _finding("mutates-input", "info", "forward changes its inputs in place")

    def check_work(self) -> Iterator[Finding]:
        """Report work that reaches no output or could be skipped, and parameters that are never read."""
        self.model.load_state_dict(self.state)
        torch.manual_seed(SEED)
        inputs = _copies(self.inputs)
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        state = [*self.model.parameters(), *self.model.buffers()]
        try:
            trace = Trace(str(self.module.__file__), tensors, state)
            with trace:
                outputs = run_forward(self.model, inputs)
            hints = list(redundant_work(trace, outputs, state))
            unread = [name for name, p in self.model.named_parameters() if address(p) not in trace.read]
        except (ReferenceFault, Untraceable) as error:
            cause = error if isinstance(error, Untraceable) else error.__cause__
            if not isinstance(cause, Untraceable):
                raise
            yield _finding("untraced", "info", f"its work was not checked: {cause}")
            return
        for severity, message, line in hints:
            yield _finding("redundant-work", severity, message, line)
        for name in unread:
            yield _finding("unused-parameter", "warning", f"forward never reads the parameter {name}")
        yield from self._copied_inputs(outputs, tensors)

    def _copied_inputs(self, outputs: Tensors, inputs: Sequence[torch.Tensor]) -> Iterator[Finding]:
        places = {address(value) for value in inputs}
        for position, output in enumerate(outputs):
            if output.numel() > 1 and address(output) not in places and any(_same(output, x) for x in inputs):
                message = f"output {position} equals an input: there is nothing to compute but a copy"
                yield _finding("redundant-work", "warning", message)

    def call_us(self) -> float:
        """Time of the fastest of a few calls, in us on one thread. A rough value, only to detect trivial problems."""
        inputs, fastest = _copies(self.inputs), float("inf")
        for _ in range(TIMED_CALLS):
            start = time.perf_counter()
            run_forward(self.model, inputs)
            fastest = min(fastest, (time.perf_counter() - start) * 1e6)
        return fastest


def _finding(rule: str, severity: str, message: str, line: int | None = None) -> Finding:
    return {"rule": rule, "severity": severity, "message": message, "line": line}


def _saturated(values: torch.Tensor) -> float:
    """The largest share of elements that equal the minimum, the maximum or zero."""
    return max(float((values == value).double().mean()) for value in (values.min(), values.max(), 0.0))


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return bool(first.shape == second.shape and first.dtype == second.dtype and torch.equal(first, second))


def _copies(inputs: Sequence[Any]) -> list[Any]:
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]


def _in_double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.dtype in LOW_FLOATS else value


def _perturbed(value: Any, redrawn: Any) -> Any:
    """Another valid value of an input: the redrawn one, or a changed copy if that is the same, or the input itself."""
    if not isinstance(value, torch.Tensor) or not isinstance(redrawn, torch.Tensor):
        return value
    if value.shape != redrawn.shape or not _alike((value,), (redrawn,), exact=True):
        return redrawn
    if value.dtype == torch.bool:
        return ~value
    return value * 1.1 + 0.1 if value.is_floating_point() else value


def _alike(first: Tensors, second: Tensors, *, exact: bool = False) -> bool:
    if len(first) != len(second):
        return False
    for a, b in zip(first, second, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if exact or not a.is_floating_point():
            same = torch.equal(a.nan_to_num(), b.nan_to_num()) if a.is_floating_point() else torch.equal(a, b)
        else:
            same = torch.allclose(a, b, rtol=1e-5, atol=0.0, equal_nan=True)
        if not same:
            return False
    return True
