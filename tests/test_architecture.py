"""The rooms and their arrows: who may import whom, what a room shows, what a candidate's import costs."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
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
    "datasets": 1,
    "prompts": 1,
    "sandbox": 1,
    "store": 1,
    "inline": 1,
    "evaluator": 2,
    "codegen": 2,
    "agents": 3,
    "export": 3,
    "evolution": 4,
    "campaign": 5,
    "bench": 6,
    "rl": 6,
    "submissions": 6,
    "leaderboard": 7,
    "mcp": 6,
    "cli": 8,
}
# records and errors stand on nothing; config may use both.
GROUND = {"records": set(), "errors": set(), "config": {"records", "errors"}, "files": {"errors"}}

# Worker-side code that runs a problem file: not part of a face, since importing it imports torch.
PRIVATE_EXCEPTIONS = {("evaluator", "kernelwright.datasets.runtime"), ("codegen", "kernelwright.datasets.runtime")}


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
    if parts[1] == room or len(parts) < 3 or not parts[2].startswith("_") or parts[2] == "__version__":
        return False
    return (room, ".".join(parts[:3])) not in PRIVATE_EXCEPTIONS


def test_private_modules_stay_in_their_room():
    assert [f"{path} reaches into {name}" for path, room, name in arrows() if is_private_elsewhere(room, name)] == []


def test_an_arrow_that_points_up_and_a_reach_into_another_room_are_found():
    assert may_import("evaluator", "sandbox")
    assert not may_import("sandbox", "evaluator")
    assert not may_import("agents", "export"), "rooms on one floor do not know each other"
    assert not may_import("records", "config")
    assert is_private_elsewhere("agents", "kernelwright.evaluator.verdict.session.ProblemSession")
    assert not is_private_elsewhere("evaluator", "kernelwright.evaluator.verdict.session.ProblemSession")


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
