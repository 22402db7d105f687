"""Runs a problem file: loads it, builds its model and inputs, and reports the line at fault if that fails.

Worker side only. A problem may be a stranger's code, so only sandboxed workers import this module (and tests that trust
their problem), never the trusted process. There is no pydantic here, to keep a worker's start short.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import linecache
import random
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from kernelwright.datasets._device import default_device_kept, meant_device, pretended_device
from kernelwright.datasets._double import LOW_FLOATS, DispatchMode, double_twin, in_double
from kernelwright.datasets._values import (
    MAX_OUTPUTS,
    argument_objection,
    input_objection,
    output_objection,
    tensor_objection,
)

__all__ = [
    "LOW_FLOATS",
    "NO_DOUBLE",
    "DispatchMode",
    "ReferenceFault",
    "double_twin",
    "fault_of",
    "in_double",
    "load_reference",
    "make_init_inputs",
    "make_inputs",
    "make_model",
    "mean_device",
    "means_device",
    "on_meant_device",
    "pretended_device",
    "randomise_parameters",
    "require_alike",
    "run_forward",
    "settle_device",
    "tensor_objection",
]

_T = TypeVar("_T")

FaultStage = Literal["import", "Model", "get_inputs", "get_init_inputs", "forward"]

_PREFIX = "kernelwright_problem_"
_NO_MEMORY = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")
NO_DOUBLE = "it does not run in float64, in which its truth is computed"


class ReferenceFault(Exception):
    """The reference itself is unusable.

    Attributes:
        stage: the failed step: ``import``, ``Model``, ``get_inputs``, ``get_init_inputs`` or ``forward``.
        line: line of the problem file at fault, counted from 1, or None if it is not known.
        message: what happened, in one line.
        traceback: the full traceback as text; empty if the fault is not an exception. It may quote hostile text.
    """

    def __init__(self, stage: FaultStage, line: int | None, message: str, traceback: str = "") -> None:
        super().__init__(stage, line, message, traceback)
        self.stage = stage
        self.line = line
        self.message = message
        self.traceback = traceback

    def __str__(self) -> str:
        return f"{self.stage}{'' if self.line is None else f', line {self.line}'}: {self.message}"

    def to_json(self) -> dict[str, Any]:
        """The fault as plain JSON: stage, line, message, traceback."""
        return {"stage": self.stage, "line": self.line, "message": self.message, "traceback": self.traceback}


def load_reference(source: str, variant: Mapping[str, Any]) -> types.ModuleType:
    """Execute a problem file and set the variant's constants as globals of the module.

    The module is registered in ``sys.modules`` and its text in ``linecache``, so that tracebacks, ``inspect`` and
    ``torch.export`` find its source although no file exists.

    Args:
        source: the whole text of the problem file.
        variant: values of module-level constants by name; set before any of the module's functions is called.

    Raises:
        ReferenceFault: the file does not run, lacks a part of the contract, or has no such constant.
    """
    digest = hashlib.sha256(f"{source}\0{json.dumps(dict(variant), sort_keys=True)}".encode()).hexdigest()[:16]
    module = types.ModuleType(_PREFIX + digest)
    module.__file__ = filename = f"{module.__name__}.py"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    sys.modules[module.__name__] = module
    bare = dict(module.__dict__)

    def execute() -> None:
        module.__dict__.clear()
        module.__dict__.update(bare)
        exec(compile(source, filename, "exec", dont_inherit=True), module.__dict__)

    try:
        with _stage("import"):
            with default_device_kept():
                on_meant_device(source, execute)
        _require_contract(module)
        for name, value in variant.items():
            if name not in module.__dict__:
                raise ReferenceFault("import", None, f"the variant sets {name}, but the file has no such constant")
            module.__dict__[name] = value
    except ReferenceFault:
        del sys.modules[module.__name__]
        raise
    return module


def _require_contract(module: types.ModuleType) -> None:
    model = getattr(module, "Model", None)
    if model is None:
        raise ReferenceFault("Model", None, "the file defines no class Model")
    if not (isinstance(model, type) and issubclass(model, nn.Module)):
        line = getattr(getattr(model, "__init__", None), "__code__", None)
        raise ReferenceFault("Model", line and line.co_firstlineno, "Model is not a subclass of torch.nn.Module")
    stages: tuple[FaultStage, ...] = ("get_inputs", "get_init_inputs")
    for name in stages:
        if not callable(getattr(module, name, None)):
            raise ReferenceFault(name, None, f"the file defines no function {name}()")


def make_init_inputs(module: types.ModuleType, seed: int = 0) -> list[Any]:
    """The constructor arguments of ``Model``, made under ``seed``.

    Raises:
        ReferenceFault: the function raises, does not return a list or tuple, or makes an unsupported value.
    """
    made = _call_maker(module, "get_init_inputs", seed)
    for position, value in enumerate(made):
        if objection := argument_objection(value):
            named = _name_of(module.Model.__init__, position)
            line = _first_line(module.get_init_inputs)
            raise ReferenceFault("get_init_inputs", line, f"argument {named} of Model's constructor {objection}")
    return made


def make_inputs(module: types.ModuleType, seed: int = 0) -> list[Any]:
    """New arguments for ``forward`` (tensors and plain values), made under ``seed``.

    Raises:
        ReferenceFault: the function raises, does not return a list or tuple, or makes an unsupported value.
    """
    made = _call_maker(module, "get_inputs", seed)
    for position, value in enumerate(made):
        if objection := input_objection(value):
            named = _name_of(module.Model.forward, position)
            raise ReferenceFault("get_inputs", _first_line(module.get_inputs), f"input {named} {objection}")
    return made


def require_alike(module: types.ModuleType, first: Sequence[Any], again: Sequence[Any]) -> None:
    """Check that two draws of inputs have the same number, types, shapes, strides and dtypes.

    Raises:
        ReferenceFault: they differ, although a kernel is judged on many draws of one shape.
    """
    fault: Callable[[str], ReferenceFault] = functools.partial(
        ReferenceFault, "get_inputs", _first_line(module.get_inputs)
    )
    if len(first) != len(again):
        raise fault(f"get_inputs() returned {len(first)} inputs, then {len(again)}: return the same number each time")
    for position, values in enumerate(zip(first, again, strict=True)):
        before, after = map(_layout, values)
        if before != after:
            named = _name_of(module.Model.forward, position)
            raise fault(f"input {named} is {before}, then {after}: each draw may change only its values")


def _layout(value: Any) -> str:
    """The properties of an input that stay the same from draw to draw, in words."""
    if not isinstance(value, torch.Tensor):
        return f"of type {type(value).__name__}"
    dtype = str(value.dtype).removeprefix("torch.")
    return f"{dtype}{list(value.shape)}" if value.is_contiguous() else f"{dtype}{list(value.shape)} {value.stride()}"


def _name_of(function: Callable[..., Any], position: int) -> str:
    """The quoted name of a method's argument at this position; the position if it has no name."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[1:]  # all but self
    except (TypeError, ValueError):
        parameters = []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return repr(named[position]) if position < len(named) else str(position)


def _call_maker(module: types.ModuleType, name: Literal["get_inputs", "get_init_inputs"], seed: int) -> list[Any]:
    function = getattr(module, name)

    def make() -> Any:
        _seed_everything(seed)
        return function()

    with _stage(name):
        made = on_meant_device(_text_of(module), make)
    if not isinstance(made, (list, tuple)):
        what = "nothing" if made is None else type(made).__name__
        raise ReferenceFault(name, _first_line(function), f"{name}() returned {what}, not a list")
    return [value.cpu() if isinstance(value, torch.Tensor) and value.device.type == "cuda" else value for value in made]


def make_model(
    module: types.ModuleType, init_inputs: Sequence[Any], *, mode: str = "eval", seed: int = 0
) -> torch.nn.Module:
    """Build ``Model(*init_inputs)`` under ``seed`` and put it into ``mode`` (``eval`` or ``train``).

    Raises:
        ReferenceFault: the constructor raises, or the model holds a tensor that cannot be passed to a candidate.
    """

    def construct() -> nn.Module:
        _seed_everything(seed)
        model: nn.Module = module.Model(*init_inputs)
        return model

    with _stage("Model"):
        model = on_meant_device(_text_of(module), construct)
        for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
            for name, tensor in tensors:
                if not is_lazy(tensor) and (objection := tensor_objection(tensor, "parameter")):
                    raise ReferenceFault("Model", _first_line(type(model).__init__), f"{kind} {name!r} {objection}")
    return model.train(mode == "train")


def run_forward(model: torch.nn.Module, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Run ``model`` on ``inputs`` and return its outputs as a flat tuple of tensors.

    Tuples, lists and dict values are flattened in order, and None is left out. If the model fails otherwise,
    :func:`mean_device` redirects it from now on to the device in use.

    Raises:
        ReferenceFault: ``forward`` raises, or returns nothing, or a value that cannot be compared.
    """
    settle_device(model, inputs)
    with _stage("forward"):
        returned = model(*inputs)
    outputs = tuple(_flatten(returned))
    line = _first_line(type(model).forward)
    if not outputs:
        raise ReferenceFault("forward", line, "forward returned nothing")
    for position, output in enumerate(outputs):
        if objection := output_objection(output):
            which = f"output {position}" if len(outputs) > 1 else "the output"
            raise ReferenceFault("forward", line, f"{which} {objection}")
    if len(outputs) > MAX_OUTPUTS:
        message = f"forward returned {len(outputs)} tensors, and at most {MAX_OUTPUTS} are supported: return fewer"
        raise ReferenceFault("forward", line, message)
    return outputs


def on_meant_device(text: str, attempt: Callable[[], _T]) -> _T:
    """Call ``attempt``. If it fails and ``text`` names CUDA, call it again with CUDA devices redirected.

    They are redirected to the GPU in use, or to an emulated one if there is no GPU. So ``.cuda()`` in a problem is no
    fault on a machine without a GPU, nor is ``device="cuda:1"`` on a machine with one GPU.
    """
    try:
        return attempt()
    except (Exception, SystemExit):
        if "cuda" not in text:
            raise
    with meant_device():
        return attempt()


def mean_device(model: nn.Module) -> None:
    """Redirect CUDA devices in the model's forward from now on; see :func:`on_meant_device`.

    Every operator of torch then takes a microsecond or two longer, so this is only for a forward that fails otherwise.
    """
    forward = model.forward

    @functools.wraps(forward)
    def on_device(*arguments: Any, **named: Any) -> Any:
        with meant_device():
            return forward(*arguments, **named)

    model.forward = on_device
    model.forward._means_device = True


def means_device(model: nn.Module) -> bool:
    """Whether :func:`mean_device` was applied to the model."""
    return hasattr(vars(model).get("forward"), "_means_device")


def settle_device(model: nn.Module, inputs: Sequence[Any]) -> None:
    """Apply :func:`mean_device` if the model's file names CUDA and its forward fails on ``inputs`` without it."""
    if means_device(model) or "cuda" not in _text_of(sys.modules.get(type(model).__module__)):
        return
    kept = {name: value.clone() for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    try:
        with torch.no_grad():
            model(*(value.clone() if isinstance(value, torch.Tensor) else value for value in inputs))
    except (Exception, SystemExit):  # noqa: BLE001 - the problem's code may raise anything; the next call reports it
        mean_device(model)
    finally:
        model.load_state_dict(kept, strict=False)


def _text_of(module: types.ModuleType | None) -> str:
    """The text of a problem that :func:`load_reference` loaded; empty for any other module."""
    filename = getattr(module, "__file__", None) or ""
    return "".join(linecache.getlines(filename)) if filename.startswith(_PREFIX) else ""


def randomise_parameters(model: torch.nn.Module, seed: int) -> None:
    """Give every float parameter and buffer of the state dict new values in place, so that none acts as an identity.

    Affine weights (1-d weights of norms, or all ones) become 1 +- 0.3, biases and all-zero parameters +-0.3,
    ``running_mean`` normal * 0.5, ``running_var`` uniform in [0.5, 1.5]. All others keep their mean, scale and sign.
    Left unchanged: integers, structured buffers (bool, non-finite values, or only two distinct values), and buffers
    outside the state dict, which cannot be passed to a candidate. A tensor's values depend only on ``seed`` and its
    name.
    """
    state = model.state_dict(keep_vars=True)
    owners = dict(model.named_modules())
    done: set[int] = set()
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or id(tensor) in done:
            continue
        done.add(id(tensor))
        path, _, leaf = name.rpartition(".")
        digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        fresh = _fresh_values(tensor.detach().float().cpu(), leaf, owners.get(path), generator)
        if fresh is not None:
            with torch.no_grad():
                tensor.copy_(fresh)


def _fresh_values(
    old: torch.Tensor, leaf: str, owner: torch.nn.Module | None, generator: torch.Generator
) -> torch.Tensor | None:
    """New values for one float32 tensor, or None if it must stay unchanged."""
    unit = torch.rand(old.shape, generator=generator)  # uniform in [0, 1)
    centred = unit * 2 - 1
    if leaf == "running_mean":
        return torch.randn(old.shape, generator=generator) * 0.5
    if leaf == "running_var":
        return unit + 0.5
    is_buffer = owner is not None and leaf in owner._buffers
    if is_buffer and _is_structured(old):
        return None
    if "bias" in leaf or not old.any():
        return centred * 0.3
    if bool((old == 1).all()) or (old.dim() == 1 and leaf == "weight" and _is_norm(owner)):
        return 1 + centred * 0.3
    std, mean = float(old.std(correction=0)), float(old.mean())
    if std == 0:
        return old * (1 + centred * 0.3)
    fresh = mean + centred * (3**0.5) * std
    return fresh.clamp_min(float(old.min())) if bool((old >= 0).all()) else fresh


def _is_structured(values: torch.Tensor) -> bool:
    return not bool(torch.isfinite(values).all()) or (values.numel() > 2 and len(values.unique()) <= 2)


def _is_norm(owner: torch.nn.Module | None) -> bool:
    return owner is not None and "norm" in type(owner).__name__.lower()


@contextmanager
def _stage(stage: FaultStage) -> Iterator[None]:
    """Turn any exception of a problem's code into a ReferenceFault that names the line of the problem file."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise fault_of(error, stage) from error


def fault_of(error: BaseException, stage: FaultStage, what: str = "") -> ReferenceFault:
    """Turn an exception into a fault of the reference, with the innermost line of its file in the traceback.

    ``what`` describes the failed step in words, if the stage alone does not.
    """
    if isinstance(error, ReferenceFault):
        return error
    said = f"{what}: {_describe(error)}" if what else _describe(error)
    text = "".join(traceback.format_exception(error))
    return ReferenceFault(stage, _line_at_fault(error), said, text)


def _describe(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"needs the package {error.name}, which is not installed"
    text = str(error).strip().split("\n", 1)[0][:500]
    if asked := _NO_MEMORY.search(text):
        return f"asks for {int(asked[1]) / 2**30:.3g} GiB at once, more than this machine gives: use smaller sizes"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _line_at_fault(error: BaseException) -> int | None:
    if isinstance(error, SyntaxError) and (error.filename or "").startswith(_PREFIX):
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(_PREFIX)]
    return lines[-1] if lines else None


def _first_line(function: Any) -> int | None:
    code = getattr(function, "__code__", None)
    return code.co_firstlineno if code is not None and code.co_filename.startswith(_PREFIX) else None


def _flatten(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _flatten(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _flatten(item)
    elif value is not None:
        yield value


def _seed_everything(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
