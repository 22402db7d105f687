"""FlashInfer-Trace: ``definitions/**/NAME.json`` and ``workloads/**/NAME.jsonl``.

A definition's constant and variable axes become constants of the problem file, and each workload whose inputs can be
drawn is a variant of it. Workloads that take tensors from a file of somebody's are left out, and a definition that has
no others cannot be judged here.

FlashInfer-Bench: https://bench.flashinfer.ai/docs/flashinfer-trace.
"""

from __future__ import annotations

import json
import keyword
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelwright.datasets.loaders._base import Entry, literal, parse_json, read_json, read_text, unusable
from kernelwright.errors import InvalidReferenceError, KernelwrightError
from kernelwright.records import Problem

_FLOATS = ("float32", "float16", "bfloat16")
_INTEGERS = {"int8": 128, "int16": 1024, "int32": 1024, "int64": 1024}  # drawn from -n to n - 1
_MOST_VARIANTS = 64

_FILE = """{reference}


# ---- what follows is kernelwright's: axes, and the contract around run()

import torch
import torch.nn as nn

{axes}


class Model(nn.Module):
    def forward(self, {names}):
        return run({names})


def get_inputs():
    return [
{inputs}    ]


def get_init_inputs():
    return []


PROBLEM = {problem}
"""


class FlashInferTrace:
    """The layout of its datasets."""

    name = "flashinfer-trace"

    def recognises(self, folder: Path) -> bool:
        """Whether there are definitions."""
        return (folder / "definitions").is_dir() and any((folder / "definitions").rglob("*.json"))

    def entries(self, suite: str, folder: Path) -> Iterator[Entry]:
        """Every definition, by the kind of operator."""
        for path in sorted((folder / "definitions").rglob("*.json")):
            yield Entry(suite, _group(path), 1, None, path.stem, path, _written)


def workload_of(problem: Problem) -> dict[str, Any] | None:
    """The workload that a problem's timed variant is, as its dataset has it; None for a problem of no such dataset.

    A definition without variable axes needs no workload: one that says so is made for it.

    Raises:
        InvalidReferenceError, UsageError: the dataset's files are not as they were when the problem was read.
    """
    path = Path(problem.path or "")
    if path.suffix != ".json" or "definitions" not in path.parts:
        return None
    data = read_json(path)
    axes, inputs = (_field(data, name, dict, path) for name in ("axes", "inputs"))
    variable = [name for name, axis in axes.items() if not _is_constant(axis, path, name)]
    timed = dict(problem.meta.variants_for("cpu")[0])
    for trace, told in _told_workloads(path, variable, inputs):
        if told == timed:
            return dict(trace["workload"])
    if variable or timed:
        raise unusable(path, f"it has no workload {timed} any more", "read the dataset again")
    made = uuid.uuid5(uuid.NAMESPACE_URL, f"{problem.id}:{problem.sha256}")
    return {"uuid": str(made), "axes": {}, "inputs": {name: {"type": "random"} for name in inputs}}


def _group(path: Path) -> str:
    """The folder that a definition lies in, or where there is none the kind that it names."""
    if path.parent.name != "definitions":
        return path.parent.name
    try:
        data = read_json(path)
    except KernelwrightError:  # said when it is read
        data = None
    kind = data.get("op_type") if isinstance(data, dict) else None
    return kind if isinstance(kind, str) and kind.isidentifier() else "definitions"


def _written(path: Path) -> str:
    data = read_json(path)
    if not isinstance(data, dict):
        raise unusable(path, "not a definition: no JSON object")
    reference, axes, inputs = (_field(data, name, kind, path) for name, kind in _FIELDS.items())
    _check_names([*axes, *inputs], path)
    _check_shapes(inputs, axes, path)
    constants = {name: axis["value"] for name, axis in axes.items() if _is_constant(axis, path, name)}
    variable = [name for name in axes if name not in constants]
    workloads = _workloads(path, variable, inputs)
    first = workloads[0]
    scalars = {name: value for name, value in first.items() if name not in axes}
    lines = [f"{name} = {value!r}" for name, value in {**constants, **first}.items()]
    drawn = "".join(f"        {_drawn(name, spec, scalars, path)},\n" for name, spec in inputs.items())
    kinds = [spec.get("dtype") for spec in inputs.values() if spec.get("shape") is not None]
    problem = {
        "title": str(data.get("description") or "").strip().split("\n", 1)[0][:120],
        "category": str(data.get("op_type") or "other"),
        "dtype": next((kind for kind in kinds if kind in _FLOATS), "float32"),
        "variants": {"cpu": workloads, "gpu": workloads},
    }
    return _FILE.format(
        reference=reference.rstrip(),
        axes="\n".join(lines),
        names=", ".join(inputs),
        inputs=drawn,
        problem=literal(problem),
    )


_FIELDS = {"reference": str, "axes": dict, "inputs": dict}


def _field(data: Mapping[str, Any], name: str, kind: type, path: Path) -> Any:
    value = data.get(name)
    if not isinstance(value, kind) or not value:
        raise unusable(path, f"not a definition: {name} is missing or empty, or no {kind.__name__}")
    return value


def _check_shapes(inputs: Mapping[str, Any], axes: Mapping[str, Any], path: Path) -> None:
    for name, spec in inputs.items():
        shape = spec.get("shape", ()) if isinstance(spec, dict) else ()
        if shape is not None and not (isinstance(shape, list) and isinstance(spec.get("dtype"), str)):
            raise unusable(path, f"input {name} has no shape, or no dtype")
        for axis in shape or ():
            if not (type(axis) is int or (isinstance(axis, str) and axis in axes)):
                raise unusable(path, f"input {name} has an axis {axis} that is not among the axes")


def _check_names(names: list[str], path: Path) -> None:
    for name in names:
        if not name.isidentifier() or keyword.iskeyword(name) or name in ("run", "Model", "torch", "nn", "PROBLEM"):
            raise unusable(path, f"{name!r} cannot be the name of an axis or an input")
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise unusable(path, f"{', '.join(sorted(twice))} is both an axis and an input")


def _is_constant(axis: Any, path: Path, name: str) -> bool:
    kind = axis.get("type") if isinstance(axis, dict) else None
    if kind == "const" and isinstance(axis.get("value"), int):
        return True
    if kind != "var":
        raise unusable(path, f"axis {name} is neither const, with a whole number, nor var")
    return False


def _workloads(path: Path, variable: list[str], inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each workload sets: the variable axes, and the scalars among the inputs.

    Raises:
        InvalidReferenceError: there is none whose inputs can be drawn.
    """
    told_ones: dict[str, dict[str, Any]] = {}  # by what they say, in their order
    unsaid = 0
    for _, told in _told_workloads(path, variable, inputs):
        unsaid += told is None
        if told is not None:
            told_ones.setdefault(json.dumps(told, sort_keys=True), told)
    found = list(told_ones.values())
    files = _workload_files(path)
    if not found and not files and not variable and all(spec.get("shape") is not None for spec in inputs.values()):
        return [{}]
    if not found:
        why = "none of its workloads says all inputs, without tensors from files" if unsaid else "it has no workload"
        raise unusable(path, why, "add a workload with random inputs")
    return found[:_MOST_VARIANTS]


def _workload_files(path: Path) -> list[Path]:
    home = next(folder for folder in path.parents if folder.name == "definitions").parent / "workloads"
    return sorted(home.rglob(f"{path.stem}.jsonl")) if home.is_dir() else []


def _told_workloads(
    path: Path, variable: list[str], inputs: Mapping[str, Any]
) -> Iterator[tuple[Any, dict[str, Any] | None]]:
    """Every line of a definition's workloads, and what it sets; None where it cannot be drawn here."""
    for file in _workload_files(path):
        for number, line in enumerate(read_text(file).splitlines(), 1):
            if line.strip():
                trace = parse_json(line, file, number)
                yield trace, _workload(trace, variable, inputs)


def _workload(trace: Any, variable: list[str], inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """None where it takes tensors from files, or does not say all that is needed."""
    workload = trace.get("workload") if isinstance(trace, dict) else None
    if not isinstance(workload, dict):
        return None
    axes, given = (found if isinstance(found := workload.get(part), dict) else {} for part in ("axes", "inputs"))
    if not all(isinstance(axes.get(name), int) for name in variable):
        return None
    told: dict[str, Any] = {name: axes[name] for name in variable}
    for name, spec in inputs.items():
        source = found if isinstance(found := given.get(name), dict) else {}
        if source.get("type") == "safetensors":
            return None
        if spec.get("shape") is None:
            if not isinstance(source.get("value"), (bool, int, float)):
                return None
            told[_scalar(name)] = source["value"]
    return told


def _scalar(name: str) -> str:
    return f"{name}_value"


def _drawn(name: str, spec: Mapping[str, Any], scalars: Mapping[str, Any], path: Path) -> str:
    """An expression that draws an input.

    Raises:
        InvalidReferenceError: values of its dtype cannot be drawn here.
    """
    shape, dtype = spec.get("shape"), spec.get("dtype")
    if shape is None:
        return _scalar(name) if _scalar(name) in scalars else "None"
    size = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
    if dtype in _FLOATS:
        return f"torch.randn({size}, dtype=torch.{dtype})"
    if dtype in _INTEGERS:
        return f"torch.randint({-_INTEGERS[dtype]}, {_INTEGERS[dtype]}, {size}, dtype=torch.{dtype})"
    if dtype == "bool":
        return f"torch.randint(0, 2, {size}, dtype=torch.bool)"
    raise _unsupported(path, name, dtype)


def _unsupported(path: Path, name: str, dtype: Any) -> InvalidReferenceError:
    return unusable(path, f"input {name} is of dtype {dtype}, which is not judged yet", "choose another definition")
