"""Runs a problem file: loads it, builds its model and inputs, and says which line is at fault when it cannot.

Worker side only: a problem may be a stranger's code, so this module is imported inside a sandboxed worker (or by a
test that trusts its problem), never by the process that decides. No pydantic here, to keep a worker's start short.
"""

from __future__ import annotations

import hashlib
import json
import linecache
import random
import sys
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn

__all__ = [
    "ReferenceFault",
    "capture_entry",
    "fit_entry",
    "lint_dynamic",
    "load_reference",
    "make_init_inputs",
    "make_inputs",
    "make_model",
    "randomise_parameters",
    "run_forward",
]

FaultStage = Literal["import", "Model", "get_inputs", "get_init_inputs", "forward"]

_PREFIX = "kernelwright_problem_"


class ReferenceFault(Exception):
    """The reference itself is unusable.

    Attributes:
        stage: what was being done: ``import``, ``Model``, ``get_inputs``, ``get_init_inputs`` or ``forward``.
        line: line of the problem file at fault, counted from 1, or None where no line of it is.
        message: what happened, in one line.
        traceback: the full traceback as text, empty where the fault is no exception. It may quote hostile text.
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
        variant: module-level constant name to value; set before anything of the module is called.

    Raises:
        ReferenceFault: the file does not run, lacks a part of the contract, or has no such constant.
    """
    digest = hashlib.sha256(f"{source}\0{json.dumps(dict(variant), sort_keys=True)}".encode()).hexdigest()[:16]
    module = types.ModuleType(_PREFIX + digest)
    module.__file__ = filename = f"{module.__name__}.py"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    sys.modules[module.__name__] = module
    try:
        with _stage("import"):
            exec(compile(source, filename, "exec", dont_inherit=True), module.__dict__)
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
        ReferenceFault: the function raises, or does not return a list or tuple.
    """
    return _call_maker(module, "get_init_inputs", seed)


def make_inputs(module: types.ModuleType, seed: int = 0) -> list[Any]:
    """Fresh arguments of ``forward`` (tensors and plain scalars), made under ``seed``.

    Raises:
        ReferenceFault: the function raises, or does not return a list or tuple.
    """
    return _call_maker(module, "get_inputs", seed)


def _call_maker(module: types.ModuleType, name: Literal["get_inputs", "get_init_inputs"], seed: int) -> list[Any]:
    function = getattr(module, name)
    _seed_everything(seed)
    with _stage(name):
        made = function()
    if not isinstance(made, (list, tuple)):
        what = "nothing" if made is None else type(made).__name__
        raise ReferenceFault(name, _first_line(function), f"{name}() returned {what}, not a list")
    return list(made)


def make_model(
    module: types.ModuleType, init_inputs: Sequence[Any], *, mode: str = "eval", seed: int = 0
) -> torch.nn.Module:
    """Build ``Model(*init_inputs)`` under ``seed`` and put it into ``mode`` (``eval`` or ``train``).

    Raises:
        ReferenceFault: the constructor raises.
    """
    _seed_everything(seed)
    with _stage("Model"):
        model = module.Model(*init_inputs)
    return model.train(mode == "train")


def run_forward(model: torch.nn.Module, inputs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Run ``model`` on ``inputs`` and return its outputs as a flat tuple of tensors.

    Tuples, lists and dict values are flattened in order.

    Raises:
        ReferenceFault: ``forward`` raises, or returns nothing or something that is no tensor.
    """
    with _stage("forward"):
        returned = model(*inputs)
    outputs = tuple(_flatten(returned))
    line = _first_line(type(model).forward)
    if not outputs:
        raise ReferenceFault("forward", line, "forward returned nothing")
    for output in outputs:
        if not isinstance(output, torch.Tensor):
            what = "nothing" if output is None else f"a {type(output).__name__}"
            raise ReferenceFault("forward", line, f"forward returned {what} where a tensor is expected")
    return outputs


def randomise_parameters(model: torch.nn.Module, seed: int) -> None:
    """Give every float parameter and buffer of the state dict fresh values in place, so that none is an identity.

    Affine weights (1-d weights of norms, or all ones) become 1 +- 0.3, biases and all-zero parameters +-0.3,
    ``running_mean`` normal * 0.5, ``running_var`` uniform in [0.5, 1.5]; every other one keeps its own mean, scale
    and sign. Left alone: integers, structured buffers (bool, non-finite values, or only two distinct values), and
    buffers outside the state dict, which cannot be handed to a candidate. A tensor's values depend on ``seed`` and
    its name only.
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
    """New values for one tensor of float32, or None where it must stay as it is."""
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


def lint_dynamic(payload: dict[str, Any]) -> dict[str, Any]:
    """Entry for a sandboxed worker: run the problem and look for weaknesses (see ``_lint_worker``)."""
    from kernelwright.datasets._lint_worker import lint

    return lint(payload)


def fit_entry(payload: dict[str, Any]) -> dict[str, Any]:
    """Entry for a sandboxed worker: smaller sizes for a problem (see ``_fit_worker``)."""
    from kernelwright.datasets._fit_worker import fit

    return fit(payload)


def capture_entry(payload: dict[str, Any]) -> dict[str, Any]:
    """Entry for a worker: turn the user's own module into a problem file (see ``_capture_worker``)."""
    from kernelwright.datasets._capture_worker import capture

    return capture(payload)


@contextmanager
def _stage(stage: FaultStage) -> Iterator[None]:
    """Turn whatever foreign code raises into a ReferenceFault that names the line of the problem file."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise ReferenceFault(stage, _line_at_fault(error), _describe(error), traceback.format_exc()) from error


def _describe(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"needs the package {error.name}, which is not installed"
    text = str(error).strip().split("\n", 1)[0][:500]
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
    else:
        yield value


def _seed_everything(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
