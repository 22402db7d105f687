"""Rules for the values that a problem may pass to its constructor and to ``forward``, hold and return.

Lint and referee share these rules. The trusted side uses the constants too, so only functions import torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

Place = Literal["input", "argument", "parameter", "output"]

ITEM_BYTES = {  # of an element, by each dtype that a tensor may have
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
MAX_DIMENSIONS = 8
MAX_OUTPUTS = 16

# The verb for a tensor in each place, for use in a remedy.
_VERBS: Mapping[Place, str] = {"input": "pass", "argument": "pass", "parameter": "hold", "output": "return"}
_STAND_INS = "torch._subclasses."  # torch's own tensor classes that propagate only shapes: FakeTensor
_TOLD = ("numpy", "torch")  # modules that are named with their types for clarity: numpy.float32, torch.device


def input_objection(value: Any) -> str:
    """Why ``value`` cannot be passed to ``forward``, and what to do instead; empty if it can."""
    import torch

    return tensor_objection(value, "input") if isinstance(value, torch.Tensor) else argument_objection(value, "input")


def argument_objection(value: Any, place: Place = "argument") -> str:
    """Why ``value`` cannot be passed as a plain argument, one without tensors; empty if it can."""
    import torch

    if isinstance(value, torch.Tensor):
        return "is a tensor, which is not supported: make it inside of Model, from a seed or from numbers"
    odd = next(_odd(value), None)
    if odd is None:
        return ""
    if isinstance(odd, torch.Tensor):
        whole = type(value).__name__
        if place == "input":
            return f"is a {whole} of tensors, which is not supported: pass them one by one"
        return f"is a {whole} with tensors in it, which is not supported: make them inside of Model"
    if isinstance(odd, torch.dtype):
        return f"is {odd}, which is not supported: use one of {', '.join(ITEM_BYTES)}"
    allowed = "numbers, strings, None, torch's dtypes, and lists, tuples and dicts of these"
    held = "is" if odd is value else f"is a {type(value).__name__} that holds"
    more = "tensors, " if place == "input" else ""
    return f"{held} {_kind(odd)}, which is not supported: use {more}{allowed}"


def output_objection(value: Any) -> str:
    """Why ``forward`` cannot return ``value`` as one of its outputs; empty if it can."""
    import torch

    if isinstance(value, torch.Tensor):
        return tensor_objection(value, "output")
    return f"is {_kind(value)} where a tensor is expected: return tensors, or tuples, lists or dicts of them"


def tensor_objection(tensor: torch.Tensor, place: Place) -> str:
    """Why a tensor in this place cannot be passed to a candidate; empty if it can."""
    import torch

    dtype, verb = str(tensor.dtype).removeprefix("torch."), _VERBS[place]
    if tensor.is_nested:
        return f"is a nested tensor, which is not supported: {verb} one tensor with padding, or its values and offsets"
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.").removeprefix("_")
        kind = "a sparse tensor" if "sparse" in layout else "a tensor"
        return f"is {kind} of layout {layout}, which is not supported: {verb} it dense (to_dense())"
    if tensor.is_quantized:
        remedy = f"{verb} its integers (int_repr()), or its values (dequantize())"
        return f"is a quantized tensor of dtype {dtype}, which is not supported: {remedy}"
    if tensor.is_complex():
        remedy = f"{verb} its real and imaginary parts (torch.view_as_real)"
        return f"is a tensor of dtype {dtype}, which is not supported: {remedy}"
    if dtype not in ITEM_BYTES:
        remedy = f"use one of {', '.join(ITEM_BYTES)}"
        return f"is a tensor of dtype {dtype}, which is not supported: {remedy}"
    if tensor.dim() > MAX_DIMENSIONS:
        return f"has {tensor.dim()} dimensions, and at most {MAX_DIMENSIONS} are supported: {verb} it reshaped"
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) or type(tensor).__module__.startswith(_STAND_INS)
    if place != "parameter" and not plain:
        remedy = f"{verb} a plain tensor (as_subclass(torch.Tensor))"
        return f"is {_kind(tensor)}, a subclass of Tensor, which is not supported: {remedy}"
    if tensor.is_meta and torch.get_default_device().type != "meta":  # with that default, only shapes are propagated
        return f"is a tensor on torch's meta device, which holds no numbers: {verb} it on the CPU"
    return ""


def _odd(value: Any) -> Iterator[Any]:
    """The parts of a plain argument that are not supported, possibly the whole argument."""
    import torch

    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _odd(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _odd(key)
            yield from _odd(item)
    elif isinstance(value, torch.dtype):
        if str(value).removeprefix("torch.") not in ITEM_BYTES:
            yield value
    elif value is not None and not isinstance(value, (bool, int, float, str)):
        yield value


def _kind(value: Any) -> str:
    """A value's type in words: ``an int``, ``a numpy.float32``."""
    home, kind = type(value).__module__.partition(".")[0], type(value).__name__
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}" if home not in _TOLD else f"a {home}.{kind}"
