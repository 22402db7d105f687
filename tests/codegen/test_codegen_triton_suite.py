"""The Triton emitter on the built-in problems: what it writes is right in the interpreter."""

from __future__ import annotations

import pytest
from test_codegen_triton import PROBLEMS, run


@pytest.fixture(scope="module")
def results():
    return run("codegen_triton_cases.py", *PROBLEMS)


@pytest.mark.parametrize("name", PROBLEMS)
def test_triton_candidate(results, name):
    assert results[name] == "ok", results[name]
