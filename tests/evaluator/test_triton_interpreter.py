"""The corrected Triton interpreter: every case of ``evaluator_triton_cases.py``, run once in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kernelwright.evaluator.worker.torch_calls import OperatorLog
from kernelwright.evaluator.worker.triton.libdevice import evaluate

SCRIPT = Path(__file__).with_name("evaluator_triton_cases.py")
ROOT = SCRIPT.parents[2]
CASES = re.findall(r"^@case\ndef (\w+)\(", SCRIPT.read_text(), flags=re.M)


def run(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def results():
    done = run(str(SCRIPT))
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_triton_case(results, name):
    assert results[name] == "ok", results[name]


def test_every_case_ran(results):
    assert sorted(results) == sorted(CASES)


def test_installing_after_triton_is_refused():
    done = run(
        "-c",
        "import triton, triton.language\n"
        "from kernelwright.evaluator.worker.triton.interpreter import install\n"
        "install()",
    )
    assert "RuntimeError: install() must come before triton is imported" in done.stderr


def test_the_face_costs_neither_torch_nor_triton():
    done = run(
        "-c",
        "import sys\n"
        "from kernelwright.evaluator.worker.triton import interpreter\n"
        "print(sorted({'torch', 'triton'} & set(sys.modules)))",
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_what_the_interpreter_computes_in_torch_is_not_the_candidates_work():
    with OperatorLog() as log:
        value = evaluate("__nv_erff", [np.array([0.5], dtype=np.float32)], np.dtype(np.float32))
    assert value == pytest.approx(0.5204999)
    assert log.names() == {}
