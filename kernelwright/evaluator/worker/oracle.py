"""The worker that runs the reference for the truth, in a sandbox like a contestant's. It ends before one sees its data.

It exports the problem's own inputs and freshly drawn weights, and computes reference outputs in the problem's dtype and
in float64, with the scale of honest rounding errors (Monte-Carlo arithmetic). It never meets a candidate.
"""

from __future__ import annotations

import copy
import socket
import traceback
import warnings
from typing import TYPE_CHECKING, Any

from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.wire.calls import (
    STRUCTURE_CHARS,
    Call,
    CallPlan,
    flatten_outputs,
    module_state,
    state_layout,
    structure_of,
)
from kernelwright.evaluator.worker.loading import Fault
from kernelwright.evaluator.worker.memory import Mapped
from kernelwright.evaluator.worker.runner import Runner, template

if TYPE_CHECKING:
    import torch

    from kernelwright.datasets.runtime import ReferenceFault

_VARIES = "does not have a deterministic implementation"  # torch's warning, where it was asked for such operators alone
_ORDER_OF_SUMS = 2e-3  # of an output's norm: a few roundings of float16
_READ_PROBES = 12  # single elements of an input that must all matter before it counts as read


def main(sock: socket.socket) -> None:
    """Serve the referee until it says quit."""
    Oracle(sock).serve()


class Oracle(Runner):
    """A worker that also describes, exports and computes truths."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.double: Any = None
        self.variant: dict[str, Any] = {}
        self.seed = 0
        self.inputs: list[Any] = []  # inputs with which the variant was described
        self.results: list[torch.Tensor] = []

    def do_describe(
        self, fds: list[int], variant: dict[str, Any], seed: int, backward: bool, randomness: str
    ) -> dict[str, Any]:
        """Load one variant; answer with constructor arguments, layouts, and the parts of a call (``plan``).

        ``fault`` says why the reference is unusable as the problem declares it, or is empty.
        """
        from kernelwright.datasets import runtime as _runtime

        try:
            self.module = _runtime.load_reference(self.source, variant)
            init = list(_runtime.make_init_inputs(self.module, seed))
            inputs = list(_runtime.make_inputs(self.module, seed))
            _runtime.require_alike(self.module, inputs, _runtime.make_inputs(self.module, seed + 1))
            self.seed, self.inputs = seed, inputs
            self.model = self._built()
            placed = [self.placed(value) for value in inputs]
            facts = _Facts(self.model, placed, seed)
            self.plan = facts.plan(backward=backward, seeded=randomness == "seeded")
            hidden = facts.hidden_inputs(self.plan)
            self.bind()
            given = (*_copies(placed), *(self.placed(value) for value in hidden))
            outputs = self.call(*given) if self.call is not None else facts.live
            structure = self._structure(placed) if self.plan.plain else ""
        except _runtime.ReferenceFault as fault:
            raise _told(fault) from None
        state = state_layout(self.model)
        return {
            "init": [wire.encode_value(value) for value in init],
            "inputs": [_describe_input(value, f"input{i}") for i, value in enumerate([*inputs, *hidden])],
            "names": _forward_names(self.model, len(inputs)),
            "state": [wire.spec_to_json(spec) for spec in state],
            "required": [*(name for name, _ in self.model.named_parameters()), *self.plan.buffers],
            "outputs": [wire.spec_to_json(spec_of(t, f"output{j}")) for j, t in enumerate(outputs)],
            "structure": structure[:STRUCTURE_CHARS],
            "plan": self.plan.to_json(),
            "fault": facts.fault(backward=backward, randomness=randomness),
        }

    def _structure(self, inputs: list[Any]) -> str:
        """The nesting of the tensors that forward returns."""
        import torch

        with torch.no_grad():
            return structure_of(self.model(*_copies(inputs)))

    def placed(self, value: Any) -> Any:
        """A model or an argument on the device that computes truths, which is this CPU if there is no other."""
        import torch

        if self.device is None or not isinstance(value, torch.Tensor | torch.nn.Module):
            return value
        return value.to(self.device)

    def fresh(self, given: Mapped, spec: wire.TensorSpec) -> torch.Tensor:
        """A separate copy of a tensor in the arena, for a call."""
        copied: torch.Tensor = self.placed(given.tensor(spec).clone())
        return copied

    def bind(self) -> None:
        """Make the call of the present model. Its written buffers start from their present contents."""
        state = dict(module_state(self.model))
        initial = {name: [state[name].detach().clone()] for name in self.plan.buffers}
        self.call = None if self.plan.plain else Call(self.model, self.plan, state, initial)
        self.double = None

    def _built(self) -> Any:
        """The variant's model from its constructor, on the device that computes truths."""
        from kernelwright.datasets import runtime as _runtime

        assert self.module is not None
        init = _runtime.make_init_inputs(self.module, self.seed)
        return self.placed(_runtime.make_model(self.module, init, mode=self.mode))

    def _twin(self) -> Any:
        """The float64 twin of the present model, as a call by the plan.

        Raises:
            ReferenceFault: the constructor makes another model when it is run again.
        """
        from kernelwright.datasets import runtime as _runtime
        from kernelwright.evaluator.worker import oracle_math as mathematics

        if self.double is None:
            try:
                twin = _runtime.double_twin(self.model, self._rebuilt)
            except ValueError as error:
                raise _runtime.fault_of(error, "Model") from error
            self.double = mathematics.PlannedModel(twin, self.plan, in_double=True)
        return self.double

    def _rebuilt(self) -> Any:
        """The model built anew. If its parameters come with its first call, it is called once."""
        import torch

        from kernelwright.datasets import runtime as _runtime

        model = self._built()
        if self.plan.on_device:
            _runtime.mean_device(model)
        if any(isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin) for _, tensor in module_state(model)):
            _runtime.run_forward(model, [self.placed(value) for value in _copies(self.inputs)])
        return model

    def do_export_weights(self, fds: list[int], size: int, state: list[Any], seed: int, kept: float) -> None:
        """Draw the weights afresh from ``seed`` and write them into the arena; a share ``kept`` of each stays."""
        import torch

        from kernelwright.datasets import runtime as _runtime

        before = {name: tensor.detach().clone() for name, tensor in module_state(self.model)} if kept else {}
        _runtime.randomise_parameters(self.model, seed)
        for name, tensor in module_state(self.model) if kept else ():
            _put_back(tensor, before[name], kept)
        self.bind()
        arena = Mapped(fds[0], size, writable=True)
        own = dict(module_state(self.model))
        with torch.no_grad():
            for spec in map(wire.spec_from_json, state):
                arena.tensor(spec).copy_(own[spec.name])

    def _unforeseen(self, operation: str, error: BaseException) -> Fault:
        """The fault for an exception of the reference outside of the described stages, with its line."""
        from kernelwright.datasets import runtime as _runtime
        from kernelwright.evaluator.worker.oracle_math import NotInDouble

        traceback.print_exception(error)
        if isinstance(error, NotInDouble) and error.__cause__ is not None:
            return _told(_runtime.fault_of(error.__cause__, "forward", _runtime.NO_DOUBLE))
        return _told(_runtime.fault_of(error, "forward"))

    def do_open_variant(self, fds: list[int], variant: dict[str, Any]) -> None:
        """Load one variant for drawing inputs, and nothing else."""
        from kernelwright.datasets import runtime as _runtime

        try:
            self.module = _runtime.load_reference(self.source, variant)
        except _runtime.ReferenceFault as fault:
            raise _told(fault) from None

    def do_export_inputs(self, fds: list[int], size: int, inputs: list[Any], seeds: list[int]) -> None:
        """Write draws of the problem's own ``get_inputs`` into the arena, one of ``size`` bytes for each seed."""
        import torch

        from kernelwright.datasets import runtime as _runtime

        assert self.module is not None
        arena = Mapped(fds[0], size * len(seeds), writable=True)
        layout = [wire.spec_from_json(item["tensor"]) if "tensor" in item else None for item in inputs]
        for k, seed in enumerate(seeds):
            try:
                values = _runtime.make_inputs(self.module, seed)
            except _runtime.ReferenceFault as fault:
                raise _told(fault) from None
            with torch.no_grad():
                for value, spec in zip(values, layout, strict=False):  # the referee fills hidden inputs
                    if spec is None:
                        continue
                    if tuple(value.shape) != spec.shape or value.stride() != spec.stride:
                        raise Fault("reference", "get_inputs", "get_inputs changes its shapes from call to call")
                    firsts = tuple(slice(0, 1) if step == 0 else slice(None) for step in spec.stride)  # of repeats
                    arena.tensor(spec, base=k * size)[firsts].copy_(value[firsts])

    def do_truth(
        self,
        fds: list[int],
        size: int,
        inputs: list[Any],
        runs: int,
        seed: int,
        unit_roundoff: float,
        by_operator: bool,
    ) -> dict[str, Any]:
        """Compute one trial on the inputs in the arena; answer with the layout of the tensors for ``collect``.

        Each output has a kind (``float``, ``exact``, ``index``) and these tensors, in this order: the output in the
        problem's dtype, the exact output, the Monte-Carlo deviation, the row deviation of the output in the problem's
        dtype; for ``index`` also the searched values and their deviation.
        """
        from kernelwright.evaluator.worker import oracle_math as mathematics

        given = Mapped(fds[0], size, writable=False)
        arguments = [
            self.fresh(given, wire.spec_from_json(i["tensor"])) if "tensor" in i else wire.decode_value(i["value"])
            for i in inputs
        ]
        low = mathematics.PlannedModel(self.model, self.plan)
        scales = mathematics.reference_scales(
            self._twin(), low, arguments, unit_roundoff=unit_roundoff, by_operator=by_operator, runs=runs, seed=seed
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
        layout, total = wire.place([spec_of(t, f"t{j}") for j, t in enumerate(self.results)])
        return {
            "reductions": [list(reduction) for reduction in scales.reductions],
            "outputs": described,
            "tensors": [wire.spec_to_json(spec) for spec in layout],
            "size": total,
        }

    def do_directions(self, fds: list[int], size: int, inputs: list[Any], position: int, seed: int) -> dict[str, Any]:
        """The directions of one input, see ``oracle_math.directions``; answer with the layout for ``collect``."""
        from kernelwright.evaluator.worker import oracle_math as mathematics

        given = Mapped(fds[0], size, writable=False)
        templates = [template(item)[1] for item in inputs]
        arguments = [self.fresh(given, t) if isinstance(t, wire.TensorSpec) else t for t in templates]
        self.results = [mathematics.directions(self._twin(), arguments, position, seed).contiguous()]
        layout, total = wire.place([spec_of(t, f"t{j}") for j, t in enumerate(self.results)])
        return {"tensors": [wire.spec_to_json(spec) for spec in layout], "size": total}

    def do_draws(self, fds: list[int], size: int, inputs: list[Any], count: int, seed: int) -> dict[str, Any]:
        """``count`` outputs of a random reference on the same inputs; answer with the layout for ``collect``."""
        import torch

        given = Mapped(fds[0], size, writable=False)
        templates = [template(item)[1] for item in inputs]
        torch.manual_seed(seed)
        self.results = []
        forward = self.call or self.model
        with torch.no_grad():
            for _ in range(count):
                arguments = [self.fresh(given, t) if isinstance(t, wire.TensorSpec) else t for t in templates]
                self.results += [t.detach().clone().contiguous() for t in flatten_outputs(forward(*arguments))]
        layout, total = wire.place([spec_of(t, f"t{j}") for j, t in enumerate(self.results)])
        return {"tensors": [wire.spec_to_json(spec) for spec in layout], "size": total}

    def do_reads(self, fds: list[int], size: int, inputs: list[Any], seed: int) -> dict[str, Any]:
        """Positions of the float inputs of which every part affects the outputs.

        A few elements at random places of an input become NaN, one at a time. An input counts as read if each of them
        changes some output.
        """
        import torch

        given = Mapped(fds[0], size, writable=False)
        templates = [template(item)[1] for item in inputs]
        arguments = [self.fresh(given, t) if isinstance(t, wire.TensorSpec) else t for t in templates]
        generator = torch.Generator().manual_seed(seed)
        forward = self.call or self.model

        def outputs() -> list[torch.Tensor]:
            torch.manual_seed(seed)
            return [t.detach().clone() for t in flatten_outputs(forward(*_copies(arguments)))]

        read = []
        with torch.no_grad():
            base = outputs()
            for position, value in enumerate(arguments):
                if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.numel() == 0:
                    continue
                seen = True
                for _ in range(_READ_PROBES):
                    flat = value.reshape(-1)
                    place = int(torch.randint(flat.numel(), (1,), generator=generator))
                    index = torch.unravel_index(torch.tensor(place), value.shape)
                    kept = value[index].clone()
                    value[index] = float("nan")
                    seen = any(not _same(a, b) for a, b in zip(base, outputs(), strict=True))
                    value[index] = kept
                    if not seen:
                        break
                if seen:
                    read.append(position)
        return {"read": read}

    def do_work(self, fds: list[int], size: int, inputs: list[Any]) -> dict[str, Any]:
        """The floating-point operations of one call, and the number of torch's steps; see ``work``."""
        import torch

        from kernelwright.evaluator.worker.torch_calls import OperatorLog

        given = Mapped(fds[0], size, writable=False)
        values = [template(item)[1] for item in inputs]
        arguments = [self.fresh(given, t) if isinstance(t, wire.TensorSpec) else t for t in values]
        with torch.no_grad(), OperatorLog() as log:
            (self.call or self.model)(*arguments)
        return {"flops": log.flops, "steps": log.steps}

    def do_collect(self, fds: list[int], size: int) -> None:
        """Write the last truth into the arena, in the layout of the last answer."""
        arena = Mapped(fds[0], size, writable=True)
        layout, _ = wire.place([spec_of(t, f"t{j}") for j, t in enumerate(self.results)])
        for spec, tensor in zip(layout, self.results, strict=True):
            arena.tensor(spec).copy_(tensor)
        self.results = []


def _told(fault: ReferenceFault) -> Fault:
    """A fault of the reference, in the form for the referee."""
    return Fault("reference", fault.stage, f"{fault.stage}: {fault.message}", fault.line)


def _put_back(tensor: torch.Tensor, before: torch.Tensor, share: float) -> None:
    """Give a share of a tensor's numbers their old values. At least one number stays new."""
    import torch

    stays = torch.rand(tensor.shape) < share
    if stays.numel():
        stays.view(-1)[torch.randint(stays.numel(), ())] = False
    with torch.no_grad():
        tensor.copy_(torch.where(stays.to(tensor.device), before, tensor))


class _Facts:
    """Facts about the reference, from some runs on the same inputs."""

    def __init__(self, model: Any, inputs: list[Any], seed: int) -> None:
        import torch

        from kernelwright.datasets import runtime as _runtime

        self._model = model
        self._inputs = inputs
        kept = copy.deepcopy(model.state_dict())
        before = {name: tensor.detach().clone() for name, tensor in module_state(model)}

        def run(run_seed: int) -> tuple[list[Any], tuple[torch.Tensor, ...]]:
            arguments = _copies(inputs)
            torch.manual_seed(run_seed)
            with torch.no_grad():
                self.live = _runtime.run_forward(model, arguments)
                return arguments, tuple(t.clone() for t in self.live)

        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            arguments, self.outputs = run(seed)
        for warning in said:
            warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno)
        varies = any(_VARIES in str(warning.message) for warning in said)
        alike = _all_close if varies else _all_same
        self.written = [
            i
            for i, (old, new) in enumerate(zip(inputs, arguments, strict=True))
            if isinstance(old, torch.Tensor) and not _same(old, new)
        ]
        state = dict(module_state(model))
        self.buffers = [name for name, value in before.items() if not _same(value, state[name])]
        model.load_state_dict(kept)
        self.repeats = alike(self.outputs, run(seed)[1])
        model.load_state_dict(kept)
        self.random = not alike(self.outputs, run(seed + 1)[1])
        model.load_state_dict(kept)

    def plan(self, *, backward: bool, seeded: bool) -> CallPlan:
        """The parts of a call, as the problem requires them."""
        import torch

        from kernelwright.datasets import runtime as _runtime

        floats = tuple(
            i for i, value in enumerate(self._inputs) if isinstance(value, torch.Tensor) and value.is_floating_point()
        )
        return CallPlan(
            written=tuple(self.written),
            buffers=tuple(self.buffers),
            seeded=seeded,
            gradients=floats if backward else None,
            parameters=tuple(name for name, p in self._model.named_parameters() if p.requires_grad) if backward else (),
            cotangents=tuple(j for j, t in enumerate(self.outputs) if t.is_floating_point()) if backward else (),
            on_device=_runtime.means_device(self._model),
        )

    def hidden_inputs(self, plan: CallPlan) -> list[torch.Tensor]:
        """Stand-ins for the hidden inputs of a slot, for their layout."""
        import torch

        cotangents = [torch.ones(self.outputs[j].shape, dtype=self.outputs[j].dtype) for j in plan.cotangents]
        return cotangents + ([torch.ones(1, dtype=torch.int64)] if plan.seeded else [])

    def fault(self, *, backward: bool, randomness: str) -> str:
        """Why the reference cannot be judged as the problem declares it; empty if it can."""
        if not self.repeats:
            return "two runs from the same seed on the same inputs differ: the reference is not reproducible"
        if self.random and randomness == "none":
            return 'the reference draws random numbers; declare "randomness": "seeded" or "distribution" in PROBLEM'
        if not self.random and randomness != "none":
            return "the problem declares randomness, but the reference's output does not depend on the generator"
        if backward and self.written:
            return "a reference that writes its own inputs cannot be run backward"
        if backward and not any(t.is_floating_point() for t in self.outputs):
            return "no output that a gradient could flow from"
        return ""


def _copies(inputs: list[Any]) -> list[Any]:
    import torch

    return [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]


def _all_same(first: tuple[torch.Tensor, ...], second: tuple[torch.Tensor, ...]) -> bool:
    return len(first) == len(second) and all(map(_same, first, second))


def _all_close(first: tuple[torch.Tensor, ...], second: tuple[torch.Tensor, ...]) -> bool:
    """Whether outputs differ by no more than the order of sums can explain."""
    return len(first) == len(second) and all(map(_close, first, second))


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not a.is_floating_point() or a.shape != b.shape:
        return _same(a, b)
    norm = float(b.double().nan_to_num().norm())
    return float((a.double() - b.double()).nan_to_num().norm()) <= _ORDER_OF_SUMS * norm


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal in shape and values. NaN equals NaN."""
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def spec_of(tensor: torch.Tensor, name: str) -> wire.TensorSpec:
    """The layout of a tensor."""
    return wire.TensorSpec(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride()))


def _describe_input(value: Any, name: str) -> dict[str, Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return {"tensor": wire.spec_to_json(spec_of(value, name))}
    return {"value": wire.encode_value(value)}


def _forward_names(model: Any, count: int) -> list[str]:
    import inspect

    names = [p.name for p in inspect.signature(model.forward).parameters.values() if p.kind is not p.VAR_KEYWORD]
    return (names + [f"input{i}" for i in range(len(names), count)])[:count]
