"""Capture: runs a problem's reference under torch.export and writes the graph as plain data.

Worker side only: this executes the problem's code, so it runs in a sandboxed worker (or in a test that trusts its
problem). One export per declared variant; the graphs must agree in structure, and the numbers that differ are kept as
vectors (see ``_size.py``).
"""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from kernelwright.codegen._constructor import constructor_module
from kernelwright.codegen._graph import CARRIES, FORMAT, Carry, CodegenError
from kernelwright.codegen._joint import export_with_gradients
from kernelwright.codegen._nodes import (
    CaptureFault,
    Nodes,
    attributes_of,
    defaults_of,
    indexed_of,
    needs_decomposition,
    parameter_names,
    plain,
    tensor_entry,
)
from kernelwright.codegen._roll import rolled
from kernelwright.datasets.runtime import (
    ReferenceFault,
    load_reference,
    make_init_inputs,
    make_inputs,
    make_model,
    settle_device,
)

_CONSTANT_LIMIT = 4096  # elements of an embedded constant tensor
_LARGE = 64 << 20  # bytes of inputs and state
T = TypeVar("T")


def capture_entry(payload: dict[str, Any]) -> dict[str, Any]:
    """Capture a problem.

    Args:
        payload: ``source`` (the problem's text), ``variant`` (module constants of the timed variant), ``variants``
            (optional: all variants; default: those that the file declares for the CPU), ``small`` (optional: the same
            text in the sizes that an interpreter checks), ``mode``, ``backward`` (also capture gradients).

    Returns:
        The graph as JSON-able data with ``ok`` true; or ``ok`` false with ``reason`` (and ``line`` where known).
    """
    try:
        source, first = payload["source"], dict(payload.get("variant") or {})
        carry = _without_data(_carry, source, first)
        mode = payload.get("mode", "eval")
        export = export_with_gradients if payload.get("backward") else _export
        exports = [_without_data(export, text, variant, mode) for text, variant in shapes_of(payload)]
        graph = _unify(exports if payload.get("backward") else rolled(exports), "graph")
        return {
            **graph,
            "ok": True,
            "format": FORMAT,
            "variants": len(exports),
            "module_source": source,
            "carry": carry,
        }
    except ReferenceFault as fault:
        return {"ok": False, "reason": str(fault), "line": fault.line}
    except CaptureFault as fault:
        return {"ok": False, "reason": str(fault), "line": None}


def _without_data(work: Callable[..., T], source: str, variant: Mapping[str, Any], *more: Any) -> T:
    """The result of ``work`` on a reference. Tensors have no data if they are large and it can do without."""
    try:
        with FakeTensorMode():
            if _bytes_of(source, variant) > _LARGE:
                return work(source, variant, *more)
    except Exception:  # noqa: BLE001 - a problem's code may raise anything, and does so again with data
        pass
    return work(source, variant, *more)


def _bytes_of(source: str, variant: Mapping[str, Any]) -> int:
    """The bytes of a reference's inputs and state."""
    module = load_reference(source, dict(variant))
    held = [*make_inputs(module, 0), *make_model(module, make_init_inputs(module, 0)).state_dict().values()]
    return sum(value.nbytes for value in held if isinstance(value, torch.Tensor))


def export_reference(source: str, variant: Mapping[str, Any], mode: str = "eval") -> tuple[nn.Module, list[Any], Any]:
    """The reference model, example inputs and its exported, functional program."""
    module = load_reference(source, dict(variant))
    model = make_model(module, make_init_inputs(module, 0))
    inputs = make_inputs(module, 0)
    model.train(mode == "train")
    settle_device(model, inputs)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(model, tuple(inputs), strict=False)
            if any(isinstance(held, FakeTensor) for held in program.constants.values()):
                raise CaptureFault("a constant has no data")  # torch would end the process below
            program = program.run_decompositions(_decompositions(program))
        except Exception as error:
            raise CaptureFault(
                f"torch.export: {type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"
            ) from error
    return model, inputs, program


def shapes_of(payload: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """A payload's texts, each with the module constants to set; the timed one first. See :func:`capture_entry`."""
    source, first = payload["source"], dict(payload.get("variant") or {})
    others = [dict(variant) for variant in payload.get("variants") or _declared_variants(source)]
    small = payload.get("small")
    shapes = [(source, variant) for variant in [first, *(other for other in others if other != first)]]
    return [*shapes, (small, {})] if small else shapes


def _declared_variants(source: str) -> list[dict[str, Any]]:
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(t, ast.Name) and t.id == "PROBLEM" for t in targets) and isinstance(node, ast.Assign):
            try:
                meta = ast.literal_eval(node.value)
            except ValueError:
                return []
            return list(meta.get("variants", {}).get("cpu", ()))
    return []


def _decompositions(program: Any) -> dict[Any, Any]:
    table: dict[Any, Any] = {}
    known = torch._decomp.core_aten_decompositions()
    for node in program.graph.nodes:
        target = node.target
        if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
            continue
        name = str(target).removeprefix("aten.")
        if needs_decomposition(name):
            if target in known:
                table[target] = known[target]
            elif target._can_decompose():
                table[target] = target.decompose
    return table


def _export(source: str, variant: Mapping[str, Any], mode: str) -> dict[str, Any]:
    model, inputs, program = export_reference(source, variant, mode)
    parameters = inspect.signature(model.forward).parameters
    return {
        **_Writer(program, model, parameter_names(parameters, len(inputs))).graph(),
        "forward_defaults": defaults_of(parameters),
        "attributes": attributes_of(model),
        "indexed": indexed_of(model),
    }


def _carry(source: str, variant: Mapping[str, Any]) -> Carry:
    """How much of the reference's text a candidate needs, so that its constructor makes the same state.

    Raises:
        CaptureFault: a candidate's constructor cannot be made of the reference's text.
        ReferenceFault: the reference cannot be built.
    """
    reference = load_reference(source, dict(variant))
    init = make_init_inputs(reference, 0)
    wanted = _state(make_model(reference, init))
    reasons = []
    for carry in CARRIES:
        try:
            made = load_reference(constructor_module(source, carry) + _CONTRACT, {})
            vars(made).update({name: value for name, value in variant.items() if name in vars(made)})
            found = _state(make_model(made, init))
        except (ReferenceFault, CodegenError) as fault:
            reasons.append(str(fault))
            continue
        if found == wanted:
            return carry
        reasons.append(f"it makes other parameters: {sorted(set(found) ^ set(wanted))[:4]}")
    raise CaptureFault(f"the constructor cannot be carried over: {reasons[-1]}")


_CONTRACT = "\nModel = ModelNew\nget_inputs = get_init_inputs = list\n"


def _state(model: nn.Module) -> set[tuple[str, str, str]]:
    """Name, shape and dtype of every parameter and buffer."""
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    return {(name, str(tuple(tensor.shape)), str(tensor.dtype)) for name, tensor in tensors.items()}


class _Writer(Nodes):
    """Turns one exported program into plain data."""

    def __init__(self, program: Any, model: nn.Module, forward_parameters: Sequence[str]) -> None:
        super().__init__()
        self.program, self.model = program, model
        self.forward_parameters = list(forward_parameters)

    def graph(self) -> dict[str, Any]:
        inputs = self._inputs()
        nodes = []
        outputs: list[dict[str, Any]] = []
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                nodes += self._called(node)
            elif node.op == "output":
                outputs = [self._argument(a) for a in node.args[0]]
        if any(o is None or "ref" not in o for o in outputs):
            raise CaptureFault("the forward pass returns something that is not a tensor")
        specs = self.program.graph_signature.output_specs
        if any(spec.kind.name not in ("USER_OUTPUT", "BUFFER_MUTATION") for spec in specs):
            raise CaptureFault("the forward pass changes an input, which generated code cannot do")
        given = list(zip(specs, outputs, strict=True))
        return {
            "inputs": inputs,
            "nodes": nodes,
            "outputs": [output for spec, output in given if spec.kind.name == "USER_OUTPUT"],
            "writes": [{"target": spec.target, **output} for spec, output in given if spec.kind.name != "USER_OUTPUT"],
            "structure": self._structure(),
            "forward_parameters": self.forward_parameters,
        }

    def _structure(self) -> str:
        spec = self.program.call_spec.out_spec
        if spec is None or spec.type is None:
            return "tensor"
        if spec.type in (tuple, list) and all(child.is_leaf() for child in spec.children()):
            return "tuple" if spec.type is tuple else "list"
        raise CaptureFault(
            f"the forward pass returns a {spec.type.__name__}; only tensors and flat tuples are generated"
        )

    def _inputs(self) -> list[dict[str, Any]]:
        kinds = {"USER_INPUT": "input", "PARAMETER": "parameter", "BUFFER": "buffer", "CONSTANT_TENSOR": "constant"}
        placeholders = [n for n in self.program.graph.nodes if n.op == "placeholder"]
        position = 0
        entries = []
        for spec, node in zip(self.program.graph_signature.input_specs, placeholders, strict=True):
            kind = kinds.get(spec.kind.name)
            if kind is None:
                raise CaptureFault(f"unsupported graph input of kind {spec.kind.name}")
            target = spec.target or ""
            if kind == "input":
                if position >= len(self.forward_parameters):
                    raise CaptureFault("forward takes nested or variadic inputs")
                target = self.forward_parameters[position]
                position += 1
            if not isinstance(node.meta.get("val"), torch.Tensor):
                continue  # a number or None: torch.export has specialised on it
            self.names[node] = {"ref": node.name}
            place = self._attribute(target) if kind == "constant" else None
            if place is not None:
                kind, target = "buffer", place
            entry = {"name": node.name, "kind": kind, "target": target, **tensor_entry(node.meta["val"])}
            if kind == "constant":
                entry["data"] = self._constant(spec.target)
            entries.append(entry)
        return entries

    def _attribute(self, target: str) -> str | None:
        """The dotted name of the plain attribute that holds a constant tensor too large to embed, or None."""
        tensor = self.program.constants[target]
        if tensor.numel() <= _CONSTANT_LIMIT:
            return None
        for prefix, module in self.model.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, torch.Tensor) and value.data_ptr() == tensor.data_ptr():
                    return f"{prefix}.{name}" if prefix else name
        return None

    def _constant(self, target: str) -> Any:
        tensor = self.program.constants[target]
        if tensor.numel() > _CONSTANT_LIMIT:
            raise CaptureFault(f"the constant tensor {target} is too large to embed ({tensor.numel()} elements)")
        return plain(tensor.tolist())


def _unify(items: Sequence[Any], where: str) -> Any:
    """Merge the trees of all variants into one. Numbers that differ become vectors.

    Raises:
        CaptureFault: the trees differ in more than numbers.
    """
    first = items[0]
    if all(type(i) is type(first) and i == first for i in items):
        return first
    if where.endswith(".contiguous") and all(isinstance(i, bool) for i in items):
        return all(items)
    if all(type(i) is int for i in items):
        return {"sizes": list(items)}
    if all(type(i) in (int, float) for i in items):
        return {"numbers": list(items)}
    if all(isinstance(i, dict) and i.keys() == first.keys() for i in items):
        return {k: _unify([i[k] for i in items], f"{where}.{k}") for k in first}
    if all(isinstance(i, list) and len(i) == len(first) for i in items):
        return [_unify(list(group), f"{where}[{n}]") for n, group in enumerate(zip(*items, strict=True))]
    raise CaptureFault(f"the variants of this problem have different graphs (at {where})")
