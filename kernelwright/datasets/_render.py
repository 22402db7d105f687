"""Writes one node of an exported graph as one readable line of PyTorch.

Worker side. Operators are looked up, not listed: the bindings under ``torch`` and on ``Tensor`` are generated from
the same schemas as the ``aten`` operators and take the same positional arguments. The few that differ are listed
below. Operators without a binding are called as ``torch.ops.aten.NAME.OVERLOAD``. The capture checks every file that it
writes against the module, so a wrong guess here does no harm.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from kernelwright.errors import UsageError

Arguments = tuple[list[str], dict[str, str]]

_INFIX = {
    "add.Tensor": "+",
    "sub.Tensor": "-",
    "mul.Tensor": "*",
    "div.Tensor": "/",
    "matmul.default": "@",
    "eq.Tensor": "==",
    "eq.Scalar": "==",
    "ne.Tensor": "!=",
    "ne.Scalar": "!=",
    "lt.Tensor": "<",
    "lt.Scalar": "<",
    "le.Tensor": "<=",
    "le.Scalar": "<=",
    "gt.Tensor": ">",
    "gt.Scalar": ">",
    "ge.Tensor": ">=",
    "ge.Scalar": ">=",
    "bitwise_and.Tensor": "&",
    "bitwise_or.Tensor": "|",
    "__and__.Tensor": "&",
    "__or__.Tensor": "|",
}

# Wrappers in torch.nn.functional whose positional arguments agree with the operator's.
_FUNCTIONAL = frozenset({"hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mish", "relu6", "silu"})
_FUNCTIONAL_POOLS = frozenset({"adaptive_avg_pool2d", "adaptive_avg_pool1d"})

# Shape changes and the like read better as methods.
_METHODS = frozenset(
    {
        *("chunk", "contiguous", "expand", "expand_as", "flatten", "masked_fill", "narrow", "permute", "repeat"),
        *("reshape", "select", "split", "squeeze", "to", "transpose", "type_as", "unbind", "unflatten", "unsqueeze"),
        *(
            "view",
            "view_as",
            "clone",
            "mean",
            "sum",
            "amax",
            "amin",
            "pow",
            "argmax",
            "argmin",
            "float",
            "bool",
            "long",
        ),
    }
)

# Operators that the export adds and that do not affect results.
_ASSERTIONS = frozenset({"_assert_tensor_metadata", "_assert_async", "sym_constrain_range_for_size"})


class Renderer:
    """Renders nodes; ``names`` maps each node already seen to its expression.

    Args:
        names: expression of each placeholder.
        device: expression of the device for new tensors.
        raw: call every operator as ``torch.ops.aten...``, in case a binding behaves differently.
    """

    def __init__(self, names: Mapping[Any, str], device: str, *, raw: bool = False) -> None:
        self.names: dict[Any, str] = dict(names)
        self.device = device
        self.raw = raw

    def expression(self, node: Any) -> str | None:
        """The right-hand side for a ``call_function`` node; None if the node needs no line.

        Raises:
            UsageError: the node is not a plain tensor operator.
        """
        target = node.target
        if target is operator.getitem:
            return f"{self.text(node.args[0])}[{self.text(node.args[1])}]"
        if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
            raise UsageError(
                f"the module uses {getattr(target, '__name__', target)}, which is not a plain tensor operator",
                hint="capture a part of the module without control flow and custom operators",
                operator=str(target),
            )
        name, overload = target._schema.name.removeprefix("aten::"), target._overloadname
        if name in _ASSERTIONS:
            return None
        if name in ("detach_", "detach") or (name == "dropout" and node.args[2] is False):
            self.names[node] = self.text(node.args[0])
            return None
        if name == "lift_fresh_copy":
            return f"{self.text(node.args[0])}.clone()"
        arguments = self._arguments(node)
        if not self.raw:
            for style in (self._infix, self._index, self._method, self._function):
                written = style(name, overload, node, arguments)
                if written is not None:
                    return written
        return f"torch.ops.aten.{name}.{overload}({_joined(arguments)})"

    def is_postfix(self, node: Any) -> bool:
        """Whether the expression is a subscript or a method call, which is readable inside another expression."""
        if node.target is operator.getitem:
            return True
        name: str = node.target._schema.name.removeprefix("aten::")
        return not self.raw and name in _METHODS | {"slice", "index"}

    def text(self, value: Any) -> str:
        """An argument as source text.

        Raises:
            UsageError: the value has no literal form; for example a size that depends on data.
        """
        if isinstance(value, torch.fx.Node):
            expression: str = self.names[value]
            return expression
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        if value is None or isinstance(value, (bool, int, float, str)):
            return repr(value)
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self.text, value))}]"
        if isinstance(value, torch.device):
            return self.device
        if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
            return f"{value}"
        raise UsageError(
            f"the module needs an argument that is not a constant: {value}",
            hint="capture a part of the module whose shapes do not depend on data",
        )

    def _arguments(self, node: Any) -> Arguments:
        defaults = {"layout": (None, torch.strided), "pin_memory": (None, False), "device": (None,)}
        keywords = {
            key: self.text(value) for key, value in node.kwargs.items() if value not in defaults.get(key, ("",))
        }
        return [self.text(value) for value in node.args], keywords

    def _infix(self, name: str, overload: str, node: Any, arguments: Arguments) -> str | None:
        sign = _INFIX.get(f"{name}.{overload}")
        if sign is None or node.kwargs or len(node.args) != 2:
            return None
        return f"{arguments[0][0]} {sign} {arguments[0][1]}"

    def _index(self, name: str, overload: str, node: Any, arguments: Arguments) -> str | None:
        """Render ``slice`` and ``index`` as subscripts."""
        if name == "slice":
            given: list[Any] = list(node.args[1:])
            dim, start, end, step = given + [0, None, None, 1][len(given) :]
            rank = node.args[0].meta["val"].dim()
            low = "" if not start else str(start)
            high = "" if end is None or end == sys.maxsize else str(end)
            part = f"{low}:{high}" + ("" if step == 1 else f":{step}")
            return f"{arguments[0][0]}[{', '.join([':'] * (dim % rank) + [part])}]"
        if name == "index":
            parts = [":" if index is None else self.text(index) for index in node.args[1]]
            return f"{arguments[0][0]}[{', '.join(parts)}]"
        return None

    def _method(self, name: str, overload: str, node: Any, arguments: Arguments) -> str | None:
        in_place = name.endswith("_") and not name.startswith("_")
        if not (in_place or name in _METHODS) or not node.args or not hasattr(torch.Tensor, name):
            return None
        positional, keywords = arguments
        return f"{positional[0]}.{name}({_joined((positional[1:], keywords))})"

    def _function(self, name: str, overload: str, node: Any, arguments: Arguments) -> str | None:
        if overload.endswith("out"):
            return None
        binding: Callable[..., Any] | None = getattr(torch._C._nn, name, None)
        if name in _FUNCTIONAL or name in _FUNCTIONAL_POOLS or (binding and getattr(F, name, None) is binding):
            return f"F.{name}({_joined(arguments)})"
        if not name.startswith("_") and hasattr(torch._C._VariableFunctions, name) and hasattr(torch, name):
            return f"torch.{name}({_joined(arguments)})"
        return None


def _joined(arguments: Arguments) -> str:
    positional, keywords = arguments
    return ", ".join([*positional, *(f"{key}={value}" for key, value in keywords.items())])
