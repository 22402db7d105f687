"""The worker of the naive evaluator, which must NOT be trusted: the kernel runs in the process that judges it.

The reference is timed before the candidate is imported. Then ``torch.allclose`` compares both, and the process's own
clock times the candidate, as in the benchmarks behind published rewards. Code of the candidate can change this process,
and with it the judgement: that is the point. Runs in a sandbox only. JSON in, JSON out.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

ATOL = RTOL = 1e-2
_WARM_UP = 3
_SEED = 42
_MOST_CHARACTERS = 500


def evaluate(payload: dict[str, Any]) -> dict[str, Any]:
    """Compare and time a candidate.

    Args:
        payload: ``reference`` and ``candidate``: sources; ``constants``: of the reference's file, by name; ``mode``:
            ``eval`` or ``train``; ``trials``: comparisons; ``runs``: timed calls of each side.

    Returns:
        ``outcome``: ``right``, ``wrong`` or ``raised``; ``detail``: an exception's text. If the candidate is right,
        also ``error``, the largest difference, and ``reference_s`` and ``kernel_s``: seconds of each call.
    """
    folder = tempfile.mkdtemp()
    reference = _imported("reference", payload["reference"], folder)
    vars(reference).update(payload["constants"])
    model = _made(reference.Model, reference, payload["mode"])
    with torch.no_grad():
        reference_s = _timed(model, _inputs(reference, _SEED), payload["runs"])
    try:
        candidate = _imported("candidate", payload["candidate"], folder)
        kernel = _made(candidate.ModelNew, reference, payload["mode"])
        with contextlib.suppress(RuntimeError):  # shapes do not fit: then the seed must make equal weights
            kernel.load_state_dict(model.state_dict(), strict=False)
        with torch.no_grad():
            errors = [_difference(model, kernel, reference, _SEED + trial) for trial in range(payload["trials"])]
            if None in errors:
                return {"outcome": "wrong", "detail": ""}
            kernel_s = _timed(kernel, _inputs(reference, _SEED), payload["runs"])
    except Exception as error:  # noqa: BLE001 - whatever foreign code raises is reported
        return {"outcome": "raised", "detail": f"{type(error).__name__}: {error}"[:_MOST_CHARACTERS]}
    largest = max(error for error in errors if error is not None)
    return {"outcome": "right", "detail": "", "error": largest, "reference_s": reference_s, "kernel_s": kernel_s}


def _imported(name: str, source: str, folder: str) -> types.ModuleType:
    """Import a source as a module from a file."""
    path = os.path.join(folder, f"{name}.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _made(model: Callable[..., torch.nn.Module], reference: types.ModuleType, mode: str) -> torch.nn.Module:
    """A model, made with the same arguments and the same seed for both sides."""
    _seed(_SEED)
    arguments = reference.get_init_inputs()
    _seed(_SEED)
    return model(*arguments).train(mode == "train")


def _inputs(reference: types.ModuleType, seed: int) -> list[Any]:
    _seed(seed)
    return list(reference.get_inputs())


def _difference(
    model: torch.nn.Module, kernel: torch.nn.Module, reference: types.ModuleType, seed: int
) -> float | None:
    """The largest difference of the two outputs on one draw of the inputs; None if they are not close."""
    inputs = _inputs(reference, seed)
    _seed(seed)
    expected = list(_tensors(model(*inputs)))
    _seed(seed)
    found = list(_tensors(kernel(*inputs)))
    if len(expected) != len(found):
        return None
    largest = 0.0
    for one, other in zip(expected, found, strict=True):
        if one.shape != other.shape or not torch.allclose(one, other, atol=ATOL, rtol=RTOL):
            return None
        differences = (one.double() - other.double()).abs().nan_to_num(0.0)
        largest = max(largest, float(differences.max()) if differences.numel() else 0.0)
    return largest


def _timed(model: torch.nn.Module, inputs: Sequence[Any], runs: int) -> list[float]:
    """Seconds of each call, on the same inputs every time."""
    for _ in range(_WARM_UP):
        model(*inputs)
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        model(*inputs)
        seconds.append(time.perf_counter() - started)
    return seconds


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    else:
        yield value


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
