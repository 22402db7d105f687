"""Turns a live ``nn.Module`` into a self-contained problem file, with ``torch.export``.

Runs in the user's own process, or in a child of it that imports the user's code; never in the referee. The file needs
only torch. Parameters and buffers keep their names in the state dict. ``forward`` is straight-line code of tensor
operations, with the submodules' names as comments. The file is checked against the module before it is returned.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from kernelwright.datasets._capture_values import ExampleInput, describe_input, parse_input_specs
from kernelwright.datasets._capture_write import CapturedGraph, write_problem
from kernelwright.datasets.runtime import ReferenceFault, load_reference, run_forward
from kernelwright.errors import UsageError

_T = TypeVar("_T")


def problem_from_module(
    model: torch.nn.Module, example_inputs: Sequence[Any] | torch.Tensor, name: str
) -> tuple[str, dict[str, str]]:
    """Write a problem file that computes what ``model`` computes.

    Args:
        model: any module that ``torch.export`` accepts, in the desired mode (train or eval).
        example_inputs: positional arguments of its ``forward``; tensors, or containers of tensors.
        name: shown as the problem's title.

    Returns:
        The source, and a map from each name in the file's state dict to the module's name (they are equal today).

    Raises:
        UsageError: the module fails on these inputs, cannot be exported, or holds more data than can be embedded.
    """
    arguments = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    leaves = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    return _capture(model, arguments, name, [describe_input(leaf) for leaf in leaves])


def capture(payload: dict[str, Any]) -> dict[str, Any]:
    """Entry of the child process: import ``target``, call the factory, and capture the module that it returns.

    Args:
        payload: ``target`` (``module:factory`` or ``path.py:factory``), ``inputs`` (input specs, or None if the
            factory returns ``(module, example_inputs)``), ``name``.

    Returns:
        ``{"source", "names"}``, or ``{"error", "hint", "traceback"}``.
    """
    try:
        model, example_inputs, described = _from_factory(payload["target"], payload.get("inputs"))
        source, names = _capture(model, example_inputs, payload["name"], described)
    except UsageError as error:
        return {"error": error.message, "hint": error.hint, "traceback": traceback.format_exc()}
    return {"source": source, "names": names}


def main(result_path: str) -> None:
    """Read the payload as JSON from standard input, and write the reply as JSON to ``result_path``."""
    reply = capture(json.load(sys.stdin))
    Path(result_path).write_text(json.dumps(reply), encoding="utf-8")


# --------------------------------------------------------------------------------------------------- the user's code


def _from_factory(target: str, inputs: str | None) -> tuple[torch.nn.Module, tuple[Any, ...], list[ExampleInput]]:
    place, _, factory_name = target.rpartition(":")
    if not place or not factory_name.isidentifier():
        raise UsageError(f"{target!r} is not module:factory", hint="write package.module:factory or file.py:factory")
    factory = getattr(_import(place), factory_name, None)
    if not callable(factory):
        raise UsageError(f"{place} has no function {factory_name}", hint="name a function that returns the module")
    made = _call_user(f"{target}()", factory)
    model, examples = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, torch.nn.Module):
        hint = "return a module, or (module, tuple of example inputs)"
        raise UsageError(f"{target}() returned {type(model).__name__}, not a torch.nn.Module", hint=hint)
    if inputs is not None:
        described = parse_input_specs(inputs)
        return model, tuple(example.make() for example in described), described
    if examples is None:
        hint = 'return (module, example inputs) from it, or give shapes: "float32[8,64],int64[8]:0..100"'
        raise UsageError(f"{target}() returned no example inputs", hint=hint)
    arguments = (examples,) if isinstance(examples, torch.Tensor) else tuple(examples)
    leaves = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    return model, arguments, [describe_input(leaf) for leaf in leaves]


def _import(place: str) -> types.ModuleType:
    if not place.endswith(".py"):
        return _call_user(f"importing {place}", lambda: importlib.import_module(place))
    path = Path(place).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"no such file: {place}", hint="give the path of a Python file")
    loader, module = spec.loader, importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    _call_user(f"importing {place}", lambda: loader.exec_module(module))
    return module


def _call_user(what: str, function: Callable[[], _T]) -> _T:
    try:
        return function()
    except Exception as error:  # the user's own code may raise anything
        raise UsageError(f"{what} failed: {_first_line(error)}", hint="run it by itself to see why") from error


# --------------------------------------------------------------------------------------------------- export and proof


def _capture(
    model: torch.nn.Module, arguments: tuple[Any, ...], name: str, described: list[ExampleInput]
) -> tuple[str, dict[str, str]]:
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        expected, state = _run(model, arguments)
        graph = CapturedGraph(_export(model, arguments), model, described, name)
        source = write_problem(graph)
        reason = _disagreement(source, state, arguments, expected)
        if reason is not None:
            source = write_problem(graph, raw=True)
            reason = _disagreement(source, state, arguments, expected)
    if reason is not None:
        raise UsageError(
            f"the captured computation does not reproduce the module: {reason}",
            hint="the module may depend on randomness, or on something outside its inputs and its state dict",
        )
    return source, {key: key for key in state}


def _run(model: torch.nn.Module, arguments: tuple[Any, ...]) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """The module's own outputs under a fixed seed, and the state before that call. The state is restored."""
    state = {k: value.detach().clone() for k, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    torch.manual_seed(0)
    outputs = _call_user("the module's forward", lambda: model(*_copied(arguments)))
    model.load_state_dict(state, strict=False)
    tensors = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    if not tensors:
        raise UsageError("the module's forward returned no tensor", hint="return the result from forward")
    return tensors, state


def _export(model: torch.nn.Module, arguments: tuple[Any, ...]) -> Any:
    with _no_attention_fast_path(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch.export.export(model, _copied(arguments), strict=False)
        except Exception as error:  # torch.export documents no closed set of exceptions
            raise UsageError(
                f"torch.export cannot capture the module: {_first_line(error)}",
                hint="a captured module has no control flow that depends on the values of its inputs",
            ) from error


@contextmanager
def _no_attention_fast_path() -> Iterator[None]:
    """Disable attention's fast path, which would turn a TransformerEncoderLayer into one opaque operator."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _disagreement(
    source: str, state: dict[str, torch.Tensor], arguments: tuple[Any, ...], expected: list[torch.Tensor]
) -> str | None:
    """Run the written file with the module's state and inputs. Returns how it differs, or None if all outputs agree."""
    leaves = [leaf for leaf in pytree.tree_leaves(_copied(arguments)) if isinstance(leaf, torch.Tensor)]
    try:
        module = load_reference(source, {})
        model = module.Model(*module.get_init_inputs())
        model.load_state_dict(state)
        model.to(expected[0].device)
        torch.manual_seed(0)
        outputs = run_forward(model, leaves)
        sys.modules.pop(module.__name__, None)
        fresh = [(value.shape, value.dtype) for value in module.get_inputs()]
    except (ReferenceFault, RuntimeError, TypeError, NameError, AttributeError) as error:
        return _first_line(error)
    if fresh != [(leaf.shape, leaf.dtype) for leaf in leaves]:
        return "its get_inputs makes other shapes or types"
    if len(outputs) != len(expected):
        return f"it has {len(outputs)} outputs instead of {len(expected)}"
    for position, (output, wanted) in enumerate(zip(outputs, expected, strict=True)):
        tolerance = 1e-5 if wanted.dtype in (torch.float32, torch.float64) else 1e-2
        if output.shape != wanted.shape or output.dtype != wanted.dtype:
            return f"output {position} has another shape or type"
        if not torch.allclose(output, wanted, rtol=tolerance, atol=tolerance, equal_nan=True):
            return f"output {position} has other values"
    return None


def _copied(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    copied: tuple[Any, ...] = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), arguments)
    return copied


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
