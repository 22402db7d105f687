"""The benchmark of matrix products, rehearsed in the interpreter: it measures, goes on, and reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "hgemm.py"


@pytest.fixture(scope="module")
def benchmark(load_script):
    return load_script("benchmarks/hgemm.py")


def run(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, env=environment)


def record(shape, torch, **ours):
    times = {name: [time, time, time] for name, time in {"torch": torch, **ours}.items()}
    return {"dtype": "float16", "shape": shape, "times": {"offline": times}, "failed": {}, "rehearsal": False}


def test_a_rehearsal_measures_and_goes_on_after_a_half_written_line(tmp_path, benchmark):
    output = tmp_path / "records.jsonl"
    arguments = ("--rehearse", "--dtype", "bfloat16", "--mode", "offline", "--output", str(output))
    done = run(*arguments)
    assert done.returncode == 0, done.stderr[-2000:]
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [tuple(r["shape"]) for r in records] == benchmark.ordered(benchmark.TINY)[: benchmark.TINY_CELLS]
    for found in records:
        assert found["rehearsal"] is True
        assert {"torch", *benchmark.SCHEDULES} <= set(found["times"]["offline"])
        assert set(found["failed"]) <= {"cublaslt"}
    first = output.read_text().splitlines(keepends=True)[0]
    output.write_text(first + '{"dtype": "bfl')
    assert run(*arguments).returncode == 0
    lines = output.read_text().splitlines(keepends=True)
    assert lines[0] == first
    assert [json.loads(line)["shape"] for line in lines] == [found["shape"] for found in records]
    assert "A rehearsal" in run("--report", "--output", str(output)).stdout


def test_without_a_gpu_it_ends_with_3_and_one_line(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "find_device", lambda: None)
    monkeypatch.setattr(sys, "argv", ["hgemm.py"])
    assert benchmark.main() == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_shapes_are_all_there_and_spread_out_from_the_start(benchmark):
    shapes = benchmark.ordered(benchmark.SIZES)
    assert len(shapes) == len(set(shapes)) == 1000
    for place in range(3):
        assert {shape[place] for shape in shapes[:60]} == set(benchmark.SIZES)


def test_the_dispatcher_knows_only_other_shapes(benchmark):
    near = [record([64, 64, size], 1.0, default=2.0, **{"64x64": 1.0}) for size in (64, 96, 128)]
    far = record([4096, 4096, 4096], 1.0, default=1.0, **{"64x64": 4.0})
    asked = record([64, 64, 80], 1.0, default=1.0, **{"64x64": 2.0})
    assert benchmark.dispatched(asked, [*near, far, asked], "offline") == "64x64"


def test_the_report_has_the_means_and_the_worst(benchmark):
    records = [record([64, 64, 64], 1.0, default=2.0, **{"64x64": 1.0}),
               record([64, 64, 96], 4.0, default=2.0, **{"64x64": 1.0}, cublaslt=2.0)]  # fmt: skip
    row = next(line for line in benchmark.report(records).splitlines() if line.startswith("| float16"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:8] == ["float16", "offline", "2", "1.000", "2.000", "2.000", "2.000", "100%"]
    assert cells[8].startswith("64x64x64 1.00")
