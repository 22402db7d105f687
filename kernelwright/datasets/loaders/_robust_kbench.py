"""robust-kbench's checkout: ``tasks/<name>/func_forward.py`` and ``func_backward.py`` with their configurations.

A task's first variant is its single configuration, the others are every combination of its several ones. A backward
task is a problem of which forward and gradients are judged together.

robust-kbench: R. T. Lange et al., "Towards robust agentic CUDA kernel benchmarking, verification, and optimization"
(arXiv 2509.14279).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelwright.datasets.loaders._base import Entry, literal, read_json, read_text, unusable
from kernelwright.datasets.loaders._levels import numbered

_PARTS = ("init_configs", "input_configs", "shared_configs")
_MOST_VARIANTS = 64

_CONFIGURED = """

# ---- what follows is kernelwright's: one configuration of the task is a variant

CONFIG = 0
CONFIGS = {configs}
_THEIRS = get_inputs


def _taken(function, given):
    import inspect

    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return {{name: value for name, value in given.items() if takes_all or name in parameters}}


def get_inputs():
    return _THEIRS(**_taken(_THEIRS, CONFIGS[CONFIG][0]))


def get_init_inputs():
    import inspect

    bound = inspect.signature(Model).bind(**_taken(Model, CONFIGS[CONFIG][1]))
    bound.apply_defaults()
    return list(bound.args)


PROBLEM = {problem}
"""


class RobustKBench:
    """The layout of its repository, or of the folder ``tasks`` alone."""

    name = "robust-kbench"

    def recognises(self, folder: Path) -> bool:
        """Whether there is a task."""
        return any(_home(folder).glob("*/func_forward.py"))

    def entries(self, suite: str, folder: Path) -> Iterator[Entry]:
        """Its tasks, forward and backward, and what it took from KernelBench."""
        home = _home(folder)
        for kind in ("forward", "backward"):
            for path in sorted(home.glob(f"*/func_{kind}.py")):
                yield Entry(suite, kind, 1, None, path.parent.name, path, _written)
        for path in sorted(home.glob("kernelbench/level_*/task_*/func_forward.py")):
            level = path.parts[-3].removeprefix("level_")
            named = [file.stem for file in sorted(path.parent.glob("*.py")) if file != path]  # what it was made from
            number, name = numbered(named[0] if named else path.parent.name)
            if level.isdecimal():
                yield Entry(suite, f"level{int(level)}", int(level), number, name, path, _written)


def _home(folder: Path) -> Path:
    return folder / "tasks" if (folder / "tasks").is_dir() else folder


def _written(path: Path) -> str:
    backward = path.stem == "func_backward"
    configs = _configs(path.parent / f"config_{'backward' if backward else 'forward'}.json")
    variants = [{"CONFIG": number} for number in range(len(configs))]
    problem: dict[str, Any] = {"variants": {"cpu": variants, "gpu": variants}}
    if backward:
        problem["backward"] = True
    return read_text(path) + _CONFIGURED.format(configs=literal(configs), problem=literal(problem))


def _configs(path: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Arguments of ``get_inputs`` and of ``Model``, of each configuration once.

    Raises:
        InvalidReferenceError: a part is missing or no list of objects, or there are too many combinations.
    """
    data = read_json(path)
    found: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}  # by what they say, in their order
    for size in ("single", "multi"):
        parts = [_part(data, f"{size}_{part}", path) for part in _PARTS]
        for init, inputs, shared in itertools.product(*parts):
            config = {**inputs, **shared}, {**init, **shared}
            if size != "multi" or config != ({}, {}):
                found.setdefault(json.dumps(config, sort_keys=True), config)
            if len(found) > _MOST_VARIANTS:
                raise unusable(path, f"more than {_MOST_VARIANTS} configurations")
    return list(found.values())


def _part(data: Any, name: str, path: Path) -> list[dict[str, Any]]:
    part = data.get(name) if isinstance(data, dict) else None
    if not isinstance(part, list) or not part or not all(isinstance(config, dict) for config in part):
        raise unusable(path, f"{name} is not a list of objects")
    return part
