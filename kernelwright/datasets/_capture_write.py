"""Writes an exported program as a problem file. Worker side."""

from __future__ import annotations

import json
import keyword
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from kernelwright.datasets._capture_values import Embedder, ExampleInput, parameter_text, tensor_text
from kernelwright.datasets._render import Renderer
from kernelwright.errors import UsageError

_HEAVY = {
    "mm": ("aten.mm",),
    "addmm": ("aten.addmm",),
    "linear": ("aten.addmm", "aten.mm"),
    "bmm": ("aten.bmm",),
    "baddbmm": ("aten.baddbmm",),
    "matmul": ("aten.bmm", "aten.mm"),
    "einsum": ("aten.bmm",),
    "scaled_dot_product_attention": ("aten.bmm",),
}

_MAX_INLINE = 60  # characters

_HELPERS = '''
class Group(nn.Module):
    """Holds parameters and buffers under the names that they had in the captured module."""

    def __getitem__(self, name):
        return getattr(self, str(name))


def put(root, name, value, persistent=True):
    """Register ``value`` in ``root`` under a dotted name."""
    *path, leaf = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, Group())
        root = root._modules[part]
    if isinstance(value, nn.Parameter):
        root.register_parameter(leaf, value)
    else:
        root.register_buffer(leaf, value, persistent=persistent)
'''

_UNPACK = '''
def unpack(text, dtype, shape):
    """Exact data, kept in this file as compressed text."""
    data = bytearray(zlib.decompress(base64.b64decode(text)))
    return torch.frombuffer(data, dtype=dtype).reshape(shape).clone()
'''


class CapturedGraph:
    """An exported program, with the names and input descriptions that its file uses."""

    def __init__(self, program: Any, model: torch.nn.Module, described: list[ExampleInput], name: str) -> None:
        self.program = program
        self.model = model
        self.described = described
        self.name = name
        kinds = torch.export.graph_signature.InputKind
        self.inputs: list[Any] = []
        self.expressions: dict[Any, str] = {}
        placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
        for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
            if spec.kind in (kinds.PARAMETER, kinds.BUFFER, kinds.CONSTANT_TENSOR):
                self.expressions[node] = attribute(spec.target)
            elif spec.kind is not kinds.USER_INPUT:
                raise UsageError(
                    f"the module holds a {spec.kind.name}, which is not a tensor", hint="capture a part of it"
                )
            elif isinstance(node.meta.get("val"), torch.Tensor):
                self.expressions[node] = safe_name(node.name)
                self.inputs.append(node)
            else:
                self.expressions[node] = repr(getattr(spec.arg, "value", None))

    @property
    def heavy_ops(self) -> list[str]:
        """The large library calls among the operators, named as in PROBLEM."""
        found: set[str] = set()
        for node in self.program.graph.nodes:
            name = str(getattr(node.target, "_schema", "")).partition("(")[0].removeprefix("aten::").partition(".")[0]
            if node.op == "call_function":
                found.update(_HEAVY.get(name, ()))
                if name.startswith("conv"):
                    found.add("aten.convolution")
        return sorted(found)


def write_problem(graph: CapturedGraph, *, raw: bool = False) -> str:
    """The text of the problem file. With ``raw``, every operator is called by its aten name.

    Raises:
        UsageError: an operator cannot be written, or the state holds too much exact data.
    """
    embed = Embedder()
    state = [f"        {line}" for line in _state_lines(graph, embed)]
    forward = [f"        {line}" for line in _forward_lines(graph, raw)]
    signature = ", ".join(["self", *(graph.expressions[node] for node in graph.inputs)])
    made = [
        f"        {example.expression(embed, f'input {graph.expressions[node]}')},  # {graph.expressions[node]}"
        for node, example in zip(graph.inputs, graph.described, strict=True)
    ]
    imports = (["import base64", "import zlib", ""] if embed.blocks else []) + ["import torch"]
    if any("F." in line for line in forward):
        imports.append("import torch.nn.functional as F")
    kind = type(graph.model).__name__
    doc = f'"""{_plain(graph.name)}: captured from a {kind} in {_mode(graph)} mode, one shape."""'
    entries = [f'    "{key}": {json.dumps(value)},' for key, value in _metadata(graph).items()]
    meta = "\n".join(["PROBLEM = {", *entries, "}"])
    parts = [doc, "\n".join([*imports, "from torch import nn"]), meta, *embed.blocks]
    text = "\n\n".join(parts) + "\n" + (f"\n{_UNPACK}" if embed.blocks else "") + f"\n{_HELPERS}\n\n"
    body = ["class Model(Group):", "    def __init__(self):", "        super().__init__()", *state, ""]
    body += [f"    def forward({signature}):", *forward, "", ""]
    body += ["def get_inputs():", "    return [", *made, "    ]", "", ""]
    body += ["def get_init_inputs():", "    return []", ""]
    return text + "\n".join(body)


def attribute(name: str) -> str:
    """Turn ``layers.0.weight`` into the expression ``self.layers[0].weight``."""
    expression = "self"
    for part in name.split("."):
        if part.isidentifier() and not keyword.iskeyword(part):
            expression += f".{part}"
        else:
            expression += f"[{part if part.isdigit() and str(int(part)) == part else repr(part)}]"
    return expression


def safe_name(name: str) -> str:
    """A variable name that shadows no name used by the file."""
    taken = {"self", "torch", "nn", "F", "Group", "put", "unpack", "base64", "zlib"}
    return f"{name}_" if name in taken or keyword.iskeyword(name) else name


def _mode(graph: CapturedGraph) -> str:
    return "train" if graph.model.training else "eval"


def _metadata(graph: CapturedGraph) -> dict[str, Any]:
    floats = [example.dtype for example in graph.described if example.dtype.is_floating_point]
    floats += [p.dtype for p in graph.model.parameters() if p.dtype.is_floating_point]
    return {
        "title": graph.name,
        "category": "captured",
        "dtype": str(floats[0] if floats else torch.float32).removeprefix("torch."),
        "mode": _mode(graph),
        "heavy_ops": graph.heavy_ops,
        "inputs": {
            graph.expressions[node]: example.domain()
            for node, example in zip(graph.inputs, graph.described, strict=True)
        },
    }


def _state_lines(graph: CapturedGraph, embed: Embedder) -> Iterator[str]:
    """Statements that register every parameter and buffer; tied ones stay tied."""
    first: dict[int, str] = {}
    kept = set(graph.model.state_dict().keys())
    named = [
        *((name, value, True) for name, value in graph.model.named_parameters(remove_duplicate=False)),
        *((name, value, False) for name, value in graph.model.named_buffers(remove_duplicate=False)),
    ]
    lifted = [
        (spec.target, graph.program.constants[spec.target], False)
        for spec in graph.program.graph_signature.input_specs
        if spec.kind is torch.export.graph_signature.InputKind.CONSTANT_TENSOR
    ]
    known = {name for name, _, _ in named}
    for name, value, is_parameter in (*named, *(item for item in lifted if item[0] not in known)):
        if id(value) in first:
            text = attribute(first[id(value)])
        elif is_parameter:
            frozen = "" if value.is_floating_point() else ", requires_grad=False"
            text = f"nn.Parameter({_state_text(value, embed, name, True)}{frozen})"
        else:
            text = _state_text(value, embed, name, False)
        first.setdefault(id(value), name)
        yield f'put(self, "{name}", {text}{"" if name in kept else ", persistent=False"})'


def _state_text(value: torch.Tensor, embed: Embedder, name: str, is_parameter: bool) -> str:
    leaf = name.rpartition(".")[2]
    if value.is_floating_point() and (is_parameter or leaf == "running_mean"):
        return parameter_text(value)
    if leaf == "running_var" and value.numel() > 1 and float(value.std()) > 0:
        return f"torch.rand({list(value.shape)}) + 0.5"
    return tensor_text(value, embed, name)


class _Statement(NamedTuple):
    """One line of forward: ``name = text``, or only ``text`` if the name is empty."""

    place: str
    name: str
    text: str
    uses: frozenset[str]


def _forward_lines(graph: CapturedGraph, raw: bool) -> Iterator[str]:
    """The body of forward: a comment where a submodule begins, one operator per line, ``del`` after a name's last use.

    ``del`` frees memory as early as the module's own code does. A reference that kept every intermediate result would
    be a slower baseline than the module.
    """
    statements = _statements(graph, raw)
    last_use = {name: i for i, statement in enumerate(statements) for name in (statement.name, *statement.uses)}
    local = {statement.name for statement in statements}
    here = ""
    for i, statement in enumerate(statements):
        if statement.place not in ("", here):
            yield f"# {statement.place}"
        here = statement.place
        yield f"{statement.name} = {statement.text}" if statement.name else statement.text
        dead = sorted(name for name in local & statement.uses if name and last_use[name] == i)
        if dead and i + 1 < len(statements):
            yield f"del {', '.join(dead)}"


def _statements(graph: CapturedGraph, raw: bool) -> list[_Statement]:
    device = f"{graph.expressions[graph.inputs[0]]}.device" if graph.inputs else '"cpu"'
    renderer = Renderer(graph.expressions, device, raw=raw)
    taken = set(graph.expressions.values())
    mutable = any(map(_mutates, graph.program.graph.nodes))
    reads: dict[Any, frozenset[str]] = {}  # the local variables in each node's expression
    statements: list[_Statement] = []
    for node in graph.program.graph.nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            outputs = [renderer.names[leaf] for leaf in _output_nodes(node)]
            uses = frozenset().union(*(reads.get(leaf, frozenset()) for leaf in _output_nodes(node)))
            statements.append(_Statement("", "", f"return {', '.join(outputs)}", uses))
            break
        if node.op != "call_function":
            raise UsageError(f"the module uses {node.target}, a nested graph", hint="capture a part of the module")
        text = renderer.expression(node)
        uses = frozenset().union(*(reads[used] for used in node.all_input_nodes if used in reads))
        if text is None:
            reads[node] = uses
        if text is None or not (node.users or _mutates(node)):
            continue
        if renderer.is_postfix(node) and len(node.users) == 1 and len(text) <= _MAX_INLINE and not mutable:
            renderer.names[node], reads[node] = text, uses
            continue
        name = _fresh(safe_name(node.name), taken) if node.users else ""
        renderer.names[node], reads[node] = name, frozenset({name})
        statements.append(_Statement(_submodule(node), name, text, uses))
    return statements


def _mutates(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable and schema.name != "aten::detach_"


def _output_nodes(node: Any) -> list[Any]:
    nodes = [leaf for leaf in node.args[0] if isinstance(leaf, torch.fx.Node)]
    if not nodes:
        raise UsageError("the module's outputs are all constants", hint="return what is computed from the inputs")
    return nodes


def _submodule(node: Any) -> str:
    """The innermost submodule of a node, such as ``layers.0.norm (LayerNorm)``; empty for the module itself."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if not stack or not stack[-1][0]:
        return ""
    path, kind = stack[-1]
    kind = kind if isinstance(kind, str) else kind.__name__
    return f"{path.partition('@')[0]} ({kind.rpartition('.')[2]})"


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _plain(text: str) -> str:
    """Make a text safe inside a docstring."""
    return " ".join(text.replace("\\", "/").replace('"', "'").split())
