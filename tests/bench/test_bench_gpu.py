"""The benchmark of a GPU: the order of problems, going on with a file, the end in time, and the means."""

from __future__ import annotations

import json

import pytest

from kernelwright.datasets import load_suite


@pytest.fixture
def benchmark(monkeypatch, load_script):
    module = load_script("benchmarks/gpu.py")
    monkeypatch.setattr(module, "find_device", lambda: "a device")
    monkeypatch.setattr(module, "environment", lambda threads, device: type("E", (), {"model_dump": lambda self: {}})())
    monkeypatch.setattr(module, "read_state", lambda device: {})
    return module


def row(name, compile_x=1.2, seconds=30.0):
    speedup = {} if compile_x is None else {"eager": {"median": 2.0}, "compile": {"median": compile_x}}
    latency = None if compile_x is None else {"median": 0.1}
    return {"problem": name, "speedup": speedup, "latency_ms": latency, "seconds": seconds, "reason": "none passed"}


def test_each_category_comes_before_any_comes_twice(benchmark):
    problems = list(load_suite("kernelwright"))
    categories = [problem.meta.category for problem in benchmark.by_worth(problems)]
    first = len(set(categories))
    assert len(set(categories[:first])) == first
    assert sorted(p.id for p in benchmark.by_worth(problems)) == sorted(p.id for p in problems)


def test_a_run_goes_on_where_the_last_one_was_killed(benchmark, monkeypatch, tmp_path, capsys):
    output, asked = tmp_path / "gpu.jsonl", []
    names = [problem.id for problem in benchmark.by_worth(load_suite("kernelwright"))]
    output.write_text(json.dumps(row(names[0])) + "\n" + json.dumps(row(names[1]))[:20])

    def winner(problem, settings):
        asked.append((problem.id, settings.rounds, settings.backend))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return row(problem.id, 0.5)

    monkeypatch.setattr(benchmark, "winner", winner)
    with pytest.raises(KeyboardInterrupt):
        benchmark.main(["--suite", "--output", str(output), "--best-of", "5"])
    assert [one[0] for one in asked] == names[1:4]
    assert {one[1:] for one in asked} == {(5, "triton")}
    assert [one["problem"] for one in benchmark.read_rows(output)] == names[:3]
    benchmark.main(["--report", "--output", str(output)])
    said = capsys.readouterr().out
    assert "compile: 0.669x over 3 problems" in said
    assert f"behind: {names[1]} 0.50x" in said


def test_no_problem_begins_that_would_not_end(benchmark, monkeypatch, tmp_path, capsys):
    output = tmp_path / "gpu.jsonl"
    output.write_text(json.dumps(row("a", seconds=90.0)) + "\n")
    monkeypatch.setattr(benchmark, "winner", lambda *given: pytest.fail("it was begun"))
    assert benchmark.main(["--suite", "--minutes", "1", "--output", str(output)]) == 0
    assert "stopped for time" in capsys.readouterr().err


def test_without_a_gpu_it_says_so(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "find_device", lambda: None)
    assert benchmark.main(["--suite"]) == 3
    assert "needs an NVIDIA GPU" in capsys.readouterr().err


def test_a_problem_without_a_kernel_is_told(benchmark, tmp_path, capsys):
    output = tmp_path / "gpu.jsonl"
    output.write_text(json.dumps(row("b", None)) + "\n")
    assert benchmark.main(["--report", "--output", str(output)]) == 0
    assert "no kernel: b: none passed" in capsys.readouterr().out
