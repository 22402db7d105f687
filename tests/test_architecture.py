"""The rooms and their arrows: who may import whom, what a room shows, what a candidate's import costs."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "kernelwright"

# The floor of every room; a room imports only from floors below it (and from itself).
FLOORS = {
    "records": 0,
    "errors": 0,
    "config": 0,
    "files": 0,
    "listening": 0,
    "plots": 0,
    "datasets": 1,
    "prompts": 1,
    "sandbox": 1,
    "store": 1,
    "inline": 1,
    "evaluator": 2,
    "codegen": 2,
    "agents": 3,
    "export": 3,
    "pool": 3,
    "evolution": 4,
    "campaign": 5,
    "bench": 6,
    "rl": 6,
    "submissions": 6,
    "proof": 6,
    "leaderboard": 7,
    "mcp": 6,
    "cli": 8,
}
# records and errors stand on nothing; config may use both.
GROUND = {
    "records": set(),
    "errors": set(),
    "config": {"records", "errors"},
    "files": {"errors"},
    "listening": {"errors"},
    "plots": set(),
}

# The floors inside the evaluator: a room imports only from rooms below it, and only their public files.
EVALUATOR_FLOORS = {
    "wire": 0,
    "figures": 0,
    "screen": 0,
    "driver": 0,
    "accuracy": 1,
    "builds": 2,
    "host": 3,
    "profile": 4,
    "worker": 5,
    "truth": 6,
    "own": 7,
    "timing": 8,
    "cpu": 9,
    "device": 9,
    "verdict": 10,
}
# What knows that there are several clocks: the registry.
KNOWS_CLOCKS = {"evaluator/verdict/clocks.py"}

MOST_LINES, MOST_FUNCTION_LINES, MOST_NAMES = 500, 80, 30

# Problem files and candidates that ship as data: nothing imports them.
DATA = {"suites", "exemplars"}


def modules() -> list[Path]:
    found = [p for p in PACKAGE.rglob("*.py") if not DATA.intersection(p.relative_to(PACKAGE).parts)]
    assert len(found) > 50
    return found


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


@cache
def imports_of(path: Path) -> set[str]:
    """Every kernelwright module that a file imports, anywhere in it, type-checking blocks included."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == "kernelwright" and name.count(".")}


def arrows() -> Iterator[tuple[str, str, str]]:
    """Every import of the package: the file, its room, and what it names."""
    for path in modules():
        for name in sorted(imports_of(path)):
            yield str(path.relative_to(PACKAGE)), room_of(path), name


def test_every_room_has_a_floor():
    rooms = {room_of(path) for path in modules()} - {"__init__"}
    assert rooms - set(FLOORS) == set(), "add it to the table in docs/design.md and here"
    named = {name.split(".")[1] for _, _, name in arrows()} - {"__version__"}
    assert named - set(FLOORS) == set()


def may_import(room: str, other: str) -> bool:
    if other in (room, "__version__"):
        return True
    return other in GROUND[room] if FLOORS[room] == 0 else FLOORS[other] < FLOORS[room]


def test_arrows_point_down():
    wrong = [
        f"{path}: {room} may not import {name}"
        for path, room, name in arrows()
        if room != "__init__" and not may_import(room, name.split(".")[1])
    ]
    assert wrong == []


def is_private_elsewhere(room: str, name: str) -> bool:
    parts = name.split(".")
    return parts[1] != room and len(parts) > 2 and parts[2].startswith("_") and parts[2] != "__version__"


def test_private_modules_stay_in_their_room():
    assert [f"{path} reaches into {name}" for path, room, name in arrows() if is_private_elsewhere(room, name)] == []


def test_an_arrow_that_points_up_and_a_reach_into_another_room_are_found():
    assert may_import("evaluator", "sandbox")
    assert not may_import("sandbox", "evaluator")
    assert not may_import("agents", "export"), "rooms on one floor do not know each other"
    assert not may_import("records", "config")
    assert is_private_elsewhere("agents", "kernelwright.store._store.Store")
    assert not is_private_elsewhere("store", "kernelwright.store._store.Store")


def face_order(name: str) -> tuple[int, str]:
    """Constants first, then classes, then functions, as the linter sorts them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


@pytest.mark.parametrize("room", sorted(r for r in FLOORS if (PACKAGE / r / "__init__.py").exists()))
def test_each_room_has_one_sorted_face(room):
    module = importlib.import_module(f"kernelwright.{room}")
    assert list(module.__all__) == sorted(set(module.__all__), key=face_order), room
    for name in module.__all__:
        assert getattr(module, name) is not None
    assert module.__doc__


def test_importing_the_package_is_cheap_and_the_trusted_rooms_do_without_torch():
    program = (
        "import sys, json; import kernelwright, kernelwright.inline;"
        "first = sorted(m for m in ('torch', 'pydantic', 'numpy', 'click') if m in sys.modules);"
        "import kernelwright.store, kernelwright.campaign, kernelwright.cli, kernelwright.mcp;"
        "from kernelwright.evaluator import Referee;"
        "print(json.dumps([first, 'torch' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], False]


# ------------------------------------------------------------------------------------------------ files


@cache
def module_names() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in modules():
        parts = ["kernelwright", *path.relative_to(PACKAGE).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def file_arrows() -> dict[str, set[str]]:
    """Which modules each module imports; the package itself, of which only the version is taken, is left out."""
    known = module_names()

    def module_of(name: str) -> str:
        while name not in known:
            name = name.rpartition(".")[0]
        return name

    arrows_of = {}
    for name, path in known.items():
        arrows_of[name] = {module_of(named) for named in imports_of(path)} - {name, "kernelwright"}
    return arrows_of


def circles(arrows_of: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of modules that import each other, by Tarjan's algorithm (R. Tarjan, SIAM J. Comput. 1, 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in arrows_of.get(name, ()):
            if other not in order:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == order[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in arrows_of:
        if name not in order:
            visit(name)
    return found


def test_no_files_import_each_other_in_a_circle():
    # A face imports the files behind it; who imports a face inside of its own room closes a circle, and is found here.
    assert circles(file_arrows()) == []


def test_a_circle_is_found():
    assert circles({"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": []}) == [["a", "b", "c"]]


def inner_room(name: str) -> str:
    parts = name.split(".")
    return parts[2] if len(parts) > 2 and parts[1] == "evaluator" else ""


def test_the_evaluators_arrows_point_down_and_to_public_files():
    inside = {name: others for name, others in file_arrows().items() if inner_room(name)}
    assert {inner_room(name) for name in inside} == set(EVALUATOR_FLOORS)
    wrong = []
    for name, others in inside.items():
        for other in others:
            here, there = inner_room(name), inner_room(other)
            if other == "kernelwright.evaluator":
                wrong.append(f"{name} imports the face of its own room")
            elif there and there != here:
                if EVALUATOR_FLOORS[there] >= EVALUATOR_FLOORS[here]:
                    wrong.append(f"{name} may not import {other}")
                if other.rpartition(".")[2].startswith("_"):
                    wrong.append(f"{name} reaches into {other}")
    assert wrong == []


def test_only_the_registry_knows_that_there_are_several_clocks():
    known = {
        str(module_names()[name].relative_to(PACKAGE))
        for name, others in file_arrows().items()
        if inner_room(name) not in ("", "device") and any(inner_room(other) == "device" for other in others)
    }
    assert known == KNOWS_CLOCKS


def test_no_module_is_longer_than_can_be_read():
    lengths = {str(path.relative_to(PACKAGE)): path.read_text().count("\n") for path in modules()}
    assert {name: length for name, length in lengths.items() if length > MOST_LINES} == {}


def test_no_function_is_longer_than_can_be_read():
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    long = {
        f"{path.relative_to(PACKAGE)}:{node.name}": node.end_lineno - node.lineno + 1
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, functions) and node.end_lineno - node.lineno >= MOST_FUNCTION_LINES
    }
    assert long == {}


@pytest.mark.parametrize("room", sorted(r for r in FLOORS if (PACKAGE / r / "__init__.py").exists()))
def test_no_face_is_wider_than_can_be_read(room):
    assert len(importlib.import_module(f"kernelwright.{room}").__all__) <= MOST_NAMES
