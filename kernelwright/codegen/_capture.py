"""Capture: runs a problem's reference under torch.export and writes the graph as plain data.

Worker side only: this executes the problem's code, so it runs in a sandboxed worker (or in a test that trusts its
problem). One export per declared variant; the graphs must agree in structure, and the numbers that differ are kept as
vectors (see ``_size.py``).
"""

from __future__ import annotations

import ast
import inspect
import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from kernelwright.codegen._constructor import constructor_module
from kernelwright.codegen._graph import CARRIES, FORMAT, Carry, CodegenError
from kernelwright.datasets._runtime import (
    ReferenceFault,
    load_reference,
    make_init_inputs,
    make_inputs,
    make_model,
    settle_device,
)

_CONSTANT_LIMIT = 4096  # elements of an embedded constant tensor

# Operators that only rewrite themselves into others that the generator knows.
_DECOMPOSED = ("einsum", "std.default", "instance_norm", "addcmul", "lerp", "outer", "tensordot", "logaddexp", "rsub")


class CaptureFault(Exception):
    """The graph cannot be captured; the message says why in one line."""


def capture_entry(payload: dict[str, Any]) -> dict[str, Any]:
    """Capture a problem.

    Args:
        payload: ``source`` (the problem's text), ``variant`` (settings of its module constants, the one that is
            timed), ``variants`` (optional: all variants; else those that the file declares for the CPU), ``mode``,
            ``backward`` (whether gradients are wanted as well).

    Returns:
        The graph as JSON-able data with ``ok`` true; or ``ok`` false with ``reason`` (and ``line`` where known).
    """
    try:
        source, first = payload["source"], dict(payload.get("variant") or {})
        carry = _carry(source, first)
        others = [dict(v) for v in payload.get("variants") or declared_variants(source)]
        mode = payload.get("mode", "eval")
        if payload.get("backward"):
            from kernelwright.codegen._joint import export_with_gradients as export
        else:
            export = _export
        exports = [export(source, variant, mode) for variant in [first, *(v for v in others if v != first)]]
        graph = _unify(exports, "graph")
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
            program = program.run_decompositions(_decompositions(program))
        except Exception as error:
            raise CaptureFault(
                f"torch.export: {type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"
            ) from error
    return model, inputs, program


def declared_variants(source: str) -> list[dict[str, Any]]:
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


def needs_decomposition(name: str) -> bool:
    """Whether an operator only rewrites itself into others that the generator knows."""
    return any(name == d or name.split(".")[0] == d for d in _DECOMPOSED)


def _export(source: str, variant: Mapping[str, Any], mode: str) -> dict[str, Any]:
    model, inputs, program = export_reference(source, variant, mode)
    parameters = inspect.signature(model.forward).parameters
    return {
        **_Writer(program, model, parameter_names(parameters, len(inputs))).graph(),
        "forward_defaults": defaults_of(parameters),
        "attributes": attributes_of(model),
        "indexed": indexed_of(model),
    }


def defaults_of(parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """The defaults of the parameters of ``forward``; None for what is no plain value."""
    return {
        p.name: p.default if isinstance(p.default, bool | int | float | str) else None
        for p in parameters.values()
        if p.default is not p.empty
    }


def parameter_names(parameters: Mapping[str, inspect.Parameter], count: int) -> list[str]:
    """The names of the parameters of ``forward``; for ``*args`` as many as ``count`` inputs take."""
    names: list[str] = []
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{name}_{number}" for number in range(count - len(names))]
        elif parameter.kind is not parameter.VAR_KEYWORD:
            names.append(name)
    return names


def indexed_of(model: nn.Module) -> list[str]:
    """The modules of which ``module[0]`` is the child of the name ``0``."""
    named = (nn.ModuleDict, nn.ParameterDict)
    return [n for n, m in model.named_modules() if hasattr(type(m), "__getitem__") and not isinstance(m, named)]


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


def attributes_of(model: nn.Module) -> dict[str, int]:
    """Whole numbers that the model and its submodules keep as public attributes: sizes that no shape shows."""
    found = {}
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if type(value) is int and not name.startswith("_"):
                found[f"{prefix}.{name}" if prefix else name] = value
    return found


class _Nodes:
    """Turns the nodes of a graph into plain data."""

    def __init__(self) -> None:
        self.names: dict[Any, dict[str, Any]] = {}

    def _called(self, node: Any) -> list[dict[str, Any]]:
        """A call as an entry; none for one result of several, which is named by the call."""
        if node.target is operator.getitem:
            self.names[node] = {**self.names[node.args[0]], "index": node.args[1]}
            return []
        return [self._node(node)]

    def _node(self, node: Any) -> dict[str, Any]:
        if not isinstance(node.target, torch._ops.OpOverload):
            raise CaptureFault(f"unsupported call {node.target}")
        self.names[node] = {"ref": node.name}
        value = node.meta.get("val")
        outputs = value if isinstance(value, (tuple, list)) else [value]
        given = [o is not None for o in outputs]
        if given != sorted(given, reverse=True):
            raise CaptureFault(f"{node.target} leaves out a result before another")
        if not all(isinstance(o, torch.Tensor) for o in outputs if o is not None):
            raise CaptureFault(f"{node.target} has a result that is not a tensor")
        return {
            "name": node.name,
            "op": str(node.target).removeprefix("aten."),
            "args": [self._argument(a) for a in _with_defaults(node)],
            "kwargs": {k: self._argument(v) for k, v in node.kwargs.items()},
            "outputs": [tensor_entry(o) for o in outputs if o is not None],
        }

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            if value not in self.names:
                raise CaptureFault(f"the graph uses {value}, which is not a tensor")
            return self.names[value]
        if isinstance(value, (list, tuple)):
            return [self._argument(v) for v in value]
        if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
            return {"symbol": type(value).__name__, "value": str(value).removeprefix("torch.")}
        if value is None or isinstance(value, (bool, int, float, str)):
            return _plain(value)
        raise CaptureFault(f"the graph holds an argument of type {type(value).__name__}")


class Written(_Nodes):
    """Part of a traced graph as plain data.

    Args:
        given: what comes into the part: a name, the node, and whether it is known to be contiguous as traced.
        nodes: the nodes of the part in execution order.
    """

    def __init__(self, given: Sequence[tuple[str, Any, bool]], nodes: Sequence[Any]) -> None:
        super().__init__()
        self.inputs = []
        for name, node, known in given:
            self.names[node] = {"ref": name}
            entry = {"name": name, "kind": "input", "target": name, **tensor_entry(node.meta["val"])}
            self.inputs.append({**entry, "contiguous": entry["contiguous"] and known})
        self.nodes = [entry for node in nodes if node.op == "call_function" for entry in self._called(node)]

    def argument(self, node: Any) -> dict[str, Any]:
        """How the graph names a result."""
        return dict(self.names[node])


class _Writer(_Nodes):
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
        """Where the model keeps a constant tensor that is too large to embed, as a plain attribute; None if nowhere."""
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
        return _plain(tensor.tolist())


def _with_defaults(node: Any) -> list[Any]:
    """Positional arguments with the schema's defaults filled in, so that variants agree in how a call is written."""
    args = list(node.args)
    for parameter in node.target._schema.arguments[len(args) :]:
        if parameter.kwarg_only or parameter.name in node.kwargs or not parameter.has_default_value():
            break
        args.append(parameter.default_value)
    return args


def _plain(value: Any) -> Any:
    """Numbers as strict JSON: infinities and NaN become ``{"float": "inf"}``."""
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"float": str(value)}
    return value


def tensor_entry(value: torch.Tensor) -> dict[str, Any]:
    return {
        "shape": [int(s) for s in value.shape],
        "dtype": str(value.dtype).removeprefix("torch."),
        "contiguous": bool(value.is_contiguous()),
    }


def _unify(items: Sequence[Any], where: str) -> Any:
    """One tree of the same tree in every variant; numbers that differ become vectors.

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
