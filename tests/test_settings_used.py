"""Every setting is read by the package and set by a test of what it does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from kernelwright.config import NAMES, Measurement

ROOT = Path(__file__).parents[1]
OF_THEMSELVES = {"test_config.py", Path(__file__).name}  # tests of how settings are read, not of what they do


def written_in(path: Path) -> set[str]:
    """Names of keywords and keys; and names in texts: of options, of variables, and before ``=`` as in a TOML file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
        elif isinstance(node, ast.Dict):
            found |= {key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(re.findall(r"(?:^|\s)([a-z_.]+) ?=", node.value))
            found |= {name.lower() for name in re.findall(r"KERNELWRIGHT_([A-Z_]+)", node.value)}
            found |= {option.replace("-", "_") for option in re.findall(r"^--([a-z-]+)$", node.value)}
    return found


@pytest.fixture(scope="module")
def set_by_tests() -> set[str]:
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path.name not in OF_THEMSELVES]
    return set().union(*map(written_in, tests))


@pytest.fixture(scope="module")
def read_by_the_package() -> set[str]:
    files = [path for path in (ROOT / "kernelwright").rglob("*.py") if path.parent.name != "config"]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    named = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return named | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("name", [*NAMES, *(f"measurement.{name}" for name in Measurement.model_fields)])
def test_a_setting_is_set_by_a_test_and_read_by_the_package(name, set_by_tests, read_by_the_package):
    part = name.rpartition(".")[2]
    assert {part, name} & read_by_the_package, f"nothing reads {name}: delete it"
    forms = {name, name.replace(".", "_"), *([part] if name.startswith("measurement.") else [])}
    assert forms & set_by_tests, f"no test sets {name}: write one of what it does"
