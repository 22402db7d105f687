"""What makes the truth: the reference's code in a sandbox like a contestant's, gone before one sees its data.

It exports the problem's own inputs and freshly drawn weights, and computes reference outputs in the problem's dtype and
in float64, with the scale of honest rounding errors (Monte-Carlo arithmetic). It never meets a candidate.
"""

from __future__ import annotations

import copy
import socket
from typing import TYPE_CHECKING, Any

from kernelwright.evaluator import _wire as wire
from kernelwright.evaluator._worker import Fault, Mapped, Runner, module_state, state_layout

if TYPE_CHECKING:
    import torch


def main(sock: socket.socket) -> None:
    """Serve the referee until it says quit."""
    Oracle(sock).serve()


class Oracle(Runner):
    """A worker that also describes, exports and computes truths."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.double: Any = None
        self.results: list[torch.Tensor] = []

    def do_describe(self, fds: list[int], variant: dict[str, Any], seed: int) -> dict[str, Any]:
        """Load one variant; answers with constructor arguments, layouts, and facts about the reference.

        Facts: ``random`` (two runs differ), ``mutates`` (positions of inputs that it wrote).
        """
        from kernelwright.datasets import _runtime

        try:
            self.module = _runtime.load_reference(self.source, variant)
            init = list(_runtime.make_init_inputs(self.module, seed))
            inputs = list(_runtime.make_inputs(self.module, seed))
            self.model = _runtime.make_model(self.module, init)
            self.model.train(self.mode == "train")
            outputs, facts = self._run_facts(inputs)
        except _runtime.ReferenceFault as fault:
            raise Fault("reference", fault.stage, f"{fault.stage}: {fault.message}", fault.line) from None
        try:
            arguments = [wire.encode_value(value) for value in init]
            described = [_describe_input(value, f"input{i}") for i, value in enumerate(inputs)]
        except TypeError as error:
            raise Fault("reference", "get_inputs", str(error)) from None
        return {
            "init": arguments,
            "inputs": described,
            "names": _forward_names(self.model, len(inputs)),
            "state": [wire.spec_to_json(spec) for spec in state_layout(self.model)],
            "parameters": sum(1 for _ in self.model.named_parameters()),
            "outputs": [wire.spec_to_json(_spec(t, f"output{j}")) for j, t in enumerate(outputs)],
            **facts,
        }

    def do_export_weights(self, fds: list[int], size: int, state: list[Any], seed: int) -> None:
        """Draw the weights afresh from ``seed`` and write them into the arena."""
        import torch

        from kernelwright.datasets import _runtime

        _runtime.randomise_parameters(self.model, seed)
        self.double = None
        arena = Mapped(fds[0], size, writable=True)
        own = dict(module_state(self.model))
        with torch.no_grad():
            for spec in map(wire.spec_from_json, state):
                arena.tensor(spec).copy_(own[spec.name])

    def do_export_inputs(self, fds: list[int], size: int, inputs: list[Any], seed: int) -> None:
        """Write one draw of the problem's own ``get_inputs`` into the arena."""
        import torch

        from kernelwright.datasets import _runtime

        assert self.module is not None
        try:
            values = _runtime.make_inputs(self.module, seed)
        except _runtime.ReferenceFault as fault:
            raise Fault("reference", fault.stage, f"{fault.stage}: {fault.message}", fault.line) from None
        arena = Mapped(fds[0], size, writable=True)
        with torch.no_grad():
            for value, item in zip(values, inputs, strict=True):
                if "tensor" not in item:
                    continue
                spec = wire.spec_from_json(item["tensor"])
                if tuple(value.shape) != spec.shape or value.stride() != spec.stride:
                    raise Fault("reference", "get_inputs", "get_inputs changes its shapes from call to call")
                arena.tensor(spec).copy_(value)

    def do_truth(
        self, fds: list[int], size: int, inputs: list[Any], runs: int, seed: int, unit_roundoff: float
    ) -> dict[str, Any]:
        """Compute one trial on the inputs in the arena; answers with the layout of what ``collect`` then hands over.

        Each output has a kind (``float``, ``exact``, ``index``) and these tensors, in this order: the output in the
        problem's dtype, the exact output, the Monte-Carlo deviation, the row deviation of the output in the problem's
        dtype; for ``index`` also the searched values and their deviation.
        """
        from kernelwright.evaluator import _oracle_math as mathematics

        given = Mapped(fds[0], size, writable=False)
        arguments = [
            given.tensor(wire.spec_from_json(i["tensor"])).clone() if "tensor" in i else wire.decode_value(i["value"])
            for i in inputs
        ]
        if self.double is None:
            self.double = mathematics.double_copy(self.model)
        scales = mathematics.reference_scales(
            self.double, self.model, arguments, unit_roundoff=unit_roundoff, runs=runs, seed=seed
        )
        self.results, described = [], []
        for output in scales.outputs:
            tensors = [output.ref_low, output.ref64, output.mca_rms, output.low_row_rms]
            rule = output.index
            tensors += [] if rule is None else [rule.values, rule.scale]
            self.results += [t.detach().contiguous() for t in tensors]
            described.append(
                {
                    "kind": output.kind,
                    "tensors": len(tensors),
                    "dim": 0 if rule is None else rule.dim,
                    "distinct": rule is not None and rule.distinct,
                }
            )
        layout, total = wire.place([_spec(t, f"t{j}") for j, t in enumerate(self.results)])
        return {
            "reduction": int(scales.longest_reduction),
            "outputs": described,
            "tensors": [wire.spec_to_json(spec) for spec in layout],
            "size": total,
        }

    def do_collect(self, fds: list[int], size: int) -> None:
        """Write the last truth into the arena, in the layout that was answered."""
        arena = Mapped(fds[0], size, writable=True)
        layout, _ = wire.place([_spec(t, f"t{j}") for j, t in enumerate(self.results)])
        for spec, tensor in zip(layout, self.results, strict=True):
            arena.tensor(spec).copy_(tensor)
        self.results = []

    def _run_facts(self, inputs: list[Any]) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
        import torch

        from kernelwright.datasets import _runtime

        before = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
        kept = copy.deepcopy(self.model.state_dict())
        with torch.no_grad():
            first = tuple(t.clone() for t in _runtime.run_forward(self.model, inputs))
            mutated = [
                i
                for i, (old, new) in enumerate(zip(before, inputs, strict=True))
                if isinstance(old, torch.Tensor) and not _same(old, new)
            ]
            self.model.load_state_dict(kept)
            second = _runtime.run_forward(self.model, before)
        different = len(first) != len(second) or not all(map(_same, first, second))
        return first, {"random": different, "mutates": mutated}


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    import torch

    return a.shape == b.shape and bool(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)))


def _spec(tensor: torch.Tensor, name: str) -> wire.TensorSpec:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in wire.DTYPES:
        raise TypeError(f"tensors of dtype {dtype} are not supported")
    if tensor.dim() > wire.MAX_DIMENSIONS:
        raise TypeError(f"a tensor has {tensor.dim()} dimensions; at most {wire.MAX_DIMENSIONS} are supported")
    return wire.TensorSpec(name, dtype, tuple(tensor.shape), tuple(tensor.stride()))


def _describe_input(value: Any, name: str) -> dict[str, Any]:
    import torch

    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            raise TypeError(f"get_inputs returns a tensor on {value.device}; return CPU tensors")
        return {"tensor": wire.spec_to_json(_spec(value, name))}
    return {"value": wire.encode_value(value)}


def _forward_names(model: Any, count: int) -> list[str]:
    import inspect

    names = [p.name for p in inspect.signature(model.forward).parameters.values() if p.kind is not p.VAR_KEYWORD]
    return (names + [f"input{i}" for i in range(len(names), count)])[:count]
