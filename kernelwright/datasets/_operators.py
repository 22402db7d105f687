"""Finds the ATen operators that a reference uses, from its text. They show what two problems have in common.

Nothing is imported or run. So this works for any problem of a store, at any time, with the same result.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["operator_category", "operators_of"]

# Words in operators' names; the first one that occurs decides. Operators that only make tensors are not counted.
_WORDS: Final = {
    "attention": "attention",
    "softmax": "softmax",
    "norm": "normalisation",
    "pool": "pooling",
    "conv": "convolution",
    "loss": "loss",
    "cum": "scan",
    "lstm": "recurrence",
    "gru": "recurrence",
    "rnn": "recurrence",
    "matmul": "product",
    "einsum": "product",
    "linear": "product",
    "tensordot": "product",
    "bmm": "product",
    "addm": "product",
    "embedding": "gather",
    "gather": "gather",
    "scatter": "gather",
    "index": "gather",
    "argm": "reduction",
    "logsumexp": "reduction",
    "sort": "order",
}
_CATEGORIES: Final = {
    "product": "mm mv dot outer baddbmm bilinear",
    "reduction": "sum mean max min amax amin prod var std all any median var_mean std_mean aminmax count_nonzero",
    "order": "topk unique kthvalue",
    "pointwise": """
        abs acos add addcdiv addcmul alpha_dropout asin atan atan2 bitwise_and bitwise_or ceil celu clamp
        clip copysign cos cosh div dropout dropout1d dropout2d dropout3d elu eq erf erfc exp exp2 expm1
        floor fmod frac ge gelu glu gt hardshrink hardsigmoid hardswish hardtanh heaviside le leaky_relu
        lerp log log10 log1p log2 logaddexp logical_and logical_not logical_or logsigmoid lt masked_fill
        maximum minimum mish mul nan_to_num ne neg pow prelu reciprocal relu relu6 remainder round rsqrt
        rsub selu sgn sigmoid sign silu sin sinh softplus softshrink softsign sqrt square sub tan tanh
        tanhshrink threshold trunc where
    """,
    "view": """
        cat chunk clone concat contiguous diagonal expand expand_as flatten flip float fold half interpolate
        movedim narrow pad permute pixel_shuffle pixel_unshuffle repeat repeat_interleave reshape roll
        select slice split squeeze stack swapaxes t to transpose tril triu type_as unbind unflatten unfold
        unsqueeze upsample view
    """,
}
_CATEGORY_OF: Final = {name: category for category, names in _CATEGORIES.items() for name in names.split()}
_BINARY: Final[Mapping[type[ast.operator], str]] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
}
_SAME: Final = {
    "cross_entropy": "cross_entropy_loss",
    "nll": "nll_loss",
    "kl_div": "kl_div_loss",
    "clip": "clamp",
    "relu6": "hardtanh",
    "concat": "cat",
    "multihead_attention": "scaled_dot_product_attention",
    "multihead_attention_forward": "scaled_dot_product_attention",
}
_NOT_THE_MODEL: Final = frozenset({"get_inputs", "get_init_inputs"})
_KEPT: Final = 1024  # problems whose operators are cached


def operator_category(name: str) -> str:
    """The category of an operator, by its name; ``other`` if the name is unknown."""
    if name in _CATEGORY_OF:
        return _CATEGORY_OF[name]
    return next((category for word, category in _WORDS.items() if word in name), "other")


@functools.lru_cache(maxsize=_KEPT)
def operators_of(source: str) -> Mapping[str, int]:
    """The operators of a problem's reference, by ATen name without overload, and how often each occurs in the text.

    Modules count as their operator (``nn.LayerNorm`` is ``layer_norm``), and so does arithmetic (``@`` is ``matmul``).
    Operators that make tensors are left out, as are those that the text does not show. Empty if the text is not valid.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return MappingProxyType({})
    names = _imported(tree)
    body = [
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name not in _NOT_THE_MODEL
    ]
    found = Counter(name for top in body for node in ast.walk(top) for name in _operators(node, names))
    return MappingProxyType(dict(sorted(found.items())))


def _imported(tree: ast.Module) -> dict[str, str]:
    """The torch paths that names in a file stand for."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.partition(".")[0]: _bound(alias) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return {name: path for name, path in names.items() if path.partition(".")[0] == "torch"}


def _bound(alias: ast.alias) -> str:
    return alias.name if alias.asname else alias.name.partition(".")[0]


def _operators(node: ast.AST, names: Mapping[str, str]) -> Iterator[str]:
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        yield _BINARY[type(node.op)]
    elif isinstance(node, ast.Call):
        path = _path(node.func)
        if path and path[0] in names:
            name = _canonical([*names[path[0]].split("."), *path[1:]])
            if operator_category(name) != "other":
                yield name
        elif isinstance(node.func, ast.Attribute) and not (path and path[0] in ("self", "super", "math")):
            name = _SAME.get(node.func.attr.rstrip("_"), node.func.attr.rstrip("_"))
            if name in _CATEGORY_OF or operator_category(name) in ("softmax", "scan", "product", "gather"):
                yield name


def _path(node: ast.expr) -> list[str]:
    """The parts of a dotted name such as ``torch.nn.functional.relu``; empty if it does not begin with a name."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        before = _path(node.value)
        return [*before, node.attr] if before else []
    return []


def _canonical(path: list[str]) -> str:
    """The name of the operator at a path in torch."""
    after_aten = path[path.index("aten") + 1 :] if "aten" in path else []
    name = (after_aten[0].removeprefix("_") if after_aten else path[-1]).rstrip("_")
    if name[:1].isupper():
        name = _of_module(name)
    name = re.sub(r"norm\dd$", "norm", name)
    name = name.removeprefix("native_").removeprefix("unsafe_")
    return _SAME.get(name, name)


def _of_module(name: str) -> str:
    """``LayerNorm`` as ``layer_norm``, ``LeakyReLU`` as ``leaky_relu``."""
    unit = re.fullmatch(r"(Leaky)?([A-Z][A-Za-z]*LU6?)", name)
    if unit:
        return ("leaky_" if unit[1] else "") + unit[2].lower()
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
