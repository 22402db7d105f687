"""Requests to an oracle worker: the reference's outputs on given inputs, and how far to trust them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernelwright.errors import InvalidReferenceError, MachineError
from kernelwright.evaluator.accuracy import arrays, budget
from kernelwright.evaluator.accuracy.trials import Trial, Truth, Variant, has_few_numbers, is_normal, read_tensor
from kernelwright.evaluator.host.client import Client
from kernelwright.evaluator.truth.errors import most_kept_bytes
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.records import InputDomain, Problem
from kernelwright.sandbox import SharedMemory

_MONTE_CARLO_RUNS = 8
_RUNS_OF_FEW = 4  # factor for few numbers, whose scale nothing averages: with 8 runs it is halved in 2% of cases
TRUTH_TIMEOUT_S = 120.0


class Asker:
    """Sends requests to one oracle worker, which has loaded a problem's source.

    Args:
        reduced: precisions inside float32 that the problem or the run allows.
    """

    _truth = "truth"

    def __init__(self, client: Client, problem: Problem, reduced: Sequence[str]) -> None:
        self._client = client
        self._problem = problem
        self._reduced = tuple(reduced)
        self._kept_bytes = 0

    def directions(self, variant: Variant, data: np.ndarray, position: int) -> np.ndarray:
        """The direction in which each element of an input moves the outputs."""
        reply = self.ask("directions", variant, data, position=position, seed=secrets.randbits(31))
        return self.collect(reply)[0]

    def trial(self, variant: Variant, distribution: str, data: np.ndarray) -> Trial:
        """A trial on the inputs in ``data``, with the reference's outputs on them."""
        runs = _MONTE_CARLO_RUNS if is_normal(distribution) else _MONTE_CARLO_RUNS // 2
        reply = self.ask(
            self._truth,
            variant,
            data,
            **self._more_of(variant),
            runs=runs * _RUNS_OF_FEW if has_few_numbers(variant) else runs,
            seed=_seed_of(variant, data),
            unit_roundoff=self._unit_roundoff(variant),
            by_operator=not self._reduced,
        )
        found = self._collected(reply)
        truths: list[Truth] = []
        at = 0
        for item in reply["outputs"]:
            truths.append(self._make_truth(item, found[at : at + item["tensors"]], variant.outputs[len(truths)].dtype))
            at += item["tensors"]
        shapes = [list(spec.shape) for spec in variant.outputs], [list(truth.exact.shape) for truth in truths]
        if shapes[0] != shapes[1]:
            message = f"the shape of an output depends on the values of the inputs: {shapes[0]}, then {shapes[1]}"
            raise self.invalid(f"{message}; return a tensor whose shape follows from theirs", "truth")
        trial = self._placed(Trial(distribution, len(variant.weights) - 1, data, _reductions(reply), tuple(truths)))
        self.keep(trial.data, *(array for t in truths if t.elsewhere is None for array in (t.low, t.exact, t.scale)))
        return trial

    def data_of(self, trial: Trial) -> np.ndarray:
        """The inputs of a trial, as slot bytes."""
        return trial.data

    def drawn(self, name: str, spec: wire.TensorSpec, domain: InputDomain) -> np.ndarray | None:
        """Numbers of a distribution for an input, of its shape or flat; None where the caller has to draw them."""
        return None

    def _more_of(self, variant: Variant) -> dict[str, Any]:
        """Further fields of a request for a truth."""
        return {}

    def _placed(self, trial: Trial) -> Trial:
        """The trial with its inputs where they are kept."""
        return trial

    def _collected(self, reply: Mapping[str, Any]) -> list[np.ndarray]:
        """The arrays of a truth that a reply announces."""
        return self.collect(reply)

    def keep(self, *arrays: np.ndarray) -> None:
        """Count the check set's memory in this process. No worker's limit bounds it.

        Raises:
            InvalidReferenceError: the memory is more than this machine can spare.
        """
        self._kept_bytes += sum(array.nbytes for array in arrays)
        if self._kept_bytes > (most := most_kept_bytes()):
            raise self.invalid(
                f"its expected outputs take more than {most / 2**30:.1f} GiB, a quarter of this machine's memory: "
                "use smaller sizes (--fit, --set NAME=VALUE)",
                "check",
            )

    def ask(self, op: str, variant: Variant, data: np.ndarray, **fields: Any) -> dict[str, Any]:
        """Send a request about one slot's inputs."""
        with SharedMemory.create(variant.slot_bytes, "inputs") as given:
            np.frombuffer(given.view, dtype=np.uint8)[:] = data
            return self._client.request(
                op,
                timeout_s=TRUTH_TIMEOUT_S,
                fds=[given.fd],
                size=variant.slot_bytes,
                inputs=variant.inputs_json(),
                **fields,
            )

    def collect(self, reply: Mapping[str, Any]) -> list[np.ndarray]:
        """Fetch the arrays that a reply announces."""
        size = int(reply["size"])
        if not 0 < size < 8 << 30:
            raise MachineError("the reference's outputs take more than 8 GiB", hint="use smaller shapes")
        memory = SharedMemory.create(size, "truth")
        try:
            self._client.request("collect", timeout_s=TRUTH_TIMEOUT_S, fds=[memory.fd], size=size)
            data = np.frombuffer(memory.view, dtype=np.uint8).copy()
        finally:
            memory.close()
        return [read_tensor(data, wire.spec_from_json(s)) for s in reply["tensors"]]

    def _make_truth(self, item: Mapping[str, Any], found: Sequence[np.ndarray], dtype: str) -> Truth:
        low, exact, deviation, rows = found[:4]
        if item["kind"] == "float":
            roundoff = arrays.unit_roundoff(dtype, self._reduced)
            scale: np.ndarray = arrays.scale(deviation, rows, exact, dtype, roundoff)
        else:
            scale = deviation
        rule = (found[4], found[5], int(item["dim"]), bool(item["distinct"])) if item["kind"] == "index" else None
        return Truth(str(item["kind"]), low, exact, scale, rule)

    def _unit_roundoff(self, variant: Variant) -> float:
        floats = [s.dtype for s in (*variant.outputs, *variant.state) if s.dtype in wire.FLOATS]
        return arrays.unit_roundoff(floats[0] if floats else "float32", self._reduced)

    def invalid(self, message: str, stage: str) -> InvalidReferenceError:
        """The error for a fault in the problem's file."""
        return InvalidReferenceError(
            f"{self._problem.id}: {message}",
            hint="mend the problem file",
            problem=self._problem.id,
            stage=stage,
            line=None,
        )


def _seed_of(variant: Variant, data: np.ndarray) -> int:
    """The seed of a slot's call if the problem has one, else a random seed."""
    if not variant.plan.seeded:
        return secrets.randbits(31)
    return int(read_tensor(data, variant.inputs[-1])[0])


def _reductions(reply: Mapping[str, Any]) -> tuple[budget.Reduction, ...]:
    return tuple(budget.Reduction(int(n), max(1, int(m)), kind) for n, m, kind in reply["reductions"])
