"""The rooms and their arrows: who may import whom, what a room shows, what a candidate's import costs."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "kernelwright"

# The floor of every room; a room imports only from floors below it (and from itself).
FLOORS = {
    "records": 0,
    "errors": 0,
    "config": 0,
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
GROUND = {"records": set(), "errors": set(), "config": {"records", "errors"}}

# Worker-side code that runs a problem file: not part of a face, since importing it imports torch.
PRIVATE_EXCEPTIONS = {("evaluator", "kernelwright.datasets._runtime"), ("codegen", "kernelwright.datasets._runtime")}


# Problem files and candidates that ship as data: nothing imports them.
DATA = {"suites", "exemplars"}


def modules() -> list[Path]:
    found = [p for p in PACKAGE.rglob("*.py") if not DATA.intersection(p.relative_to(PACKAGE).parts)]
    assert len(found) > 50
    return found


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


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


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_arrows_point_down(path):
    room = room_of(path)
    if room == "__init__":
        return
    assert room in FLOORS, f"{room} has no floor: add it to the table in docs/design.md and here"
    for name in imports_of(path):
        other = name.split(".")[1]
        if other in (room, "__version__"):
            continue
        assert other in FLOORS, f"{path} imports {name}"
        if FLOORS[room] == 0:
            assert other in GROUND[room], f"{room} may not import {other}"
        else:
            assert FLOORS[other] < FLOORS[room], f"{path}: {room} may not import {other} ({name})"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_private_modules_stay_in_their_room(path):
    room = room_of(path)
    for name in imports_of(path):
        parts = name.split(".")
        if parts[1] == room or len(parts) < 3 or not parts[2].startswith("_") or parts[2] == "__version__":
            continue
        assert (room, ".".join(parts[:3])) in PRIVATE_EXCEPTIONS, f"{path} reaches into {name}"


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
