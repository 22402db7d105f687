"""The Triton emitter on the built-in problems: what it writes is right in the interpreter."""

from __future__ import annotations

import pytest
from test_codegen_suite import NOT_ONE_GRAPH
from test_codegen_triton import PROBLEMS, run

NAMES = sorted({*PROBLEMS} - NOT_ONE_GRAPH)


@pytest.fixture(scope="module")
def results(taken):
    return run("codegen_triton_cases.py", *taken("name"))


@pytest.mark.matrix
@pytest.mark.parametrize("name", NAMES)
def test_triton_candidate(results, name):
    assert results[name] == "ok", results[name]
