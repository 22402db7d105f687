"""``bench`` over files of KernelBench."""

from __future__ import annotations

import json

import pytest

TIMES = {1: 4.0, 2: 1.0, 3: 4.0}


def entry(sample, runtime):
    right = runtime is not None
    return {"sample_id": sample, "compiled": True, "correctness": right, "metadata": {}, "runtime": runtime or -1.0}


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    results = {"1": [entry(0, 2.0), entry(1, 0.5)], "2": [entry(0, None)]}
    (folder / "eval_results.json").write_text(json.dumps(results))
    (folder / "level_2_problem_1_sample_0_kernel.py").write_text("")
    return folder


@pytest.fixture
def baseline(tmp_path):
    path = tmp_path / "inductor.json"
    path.write_text(json.dumps({"level2": {f"{n}_a.py": {"mean": time} for n, time in TIMES.items()}}))
    return path


def test_a_report_has_the_figures_of_kernelbench_beside_those_of_all_samples(terminal, run, baseline):
    words = ("bench", "report", run, "--baseline", baseline, "--baseline", f"eager={baseline}")
    data = terminal.json(*words)
    assert (data["level"], data["problems"], list(data["baselines"])) == (2, 3, ["inductor", "eager"])
    found = data["baselines"]["inductor"]
    assert found["kernelbench"]["fast_p"]["1.5"] == pytest.approx(1 / 3)
    assert found["kernelbench"]["geometric_mean"] == pytest.approx(2.0)
    assert found["all_samples"]["geometric_mean"]["median"] == pytest.approx(8.0)
    assert found == data["baselines"]["eager"]

    markdown = terminal.folder / "out" / "report.md"
    markdown.parent.mkdir()
    text = terminal(*words, "--markdown", markdown).stdout
    for line in ("geometric mean speedup", "8.000 [8.000, 8.000]", "against inductor", "against eager"):
        assert line in text
    page = markdown.read_text()
    assert page.count("| geometric mean speedup | 2.0000 | 8.000 [8.000, 8.000] |") == 2
    assert "Level 2, 3 problems" in page


def test_with_the_suite_all_of_its_level_counts(terminal, run, baseline, tmp_path):
    level = tmp_path / "KernelBench" / "level2"
    level.mkdir(parents=True)
    for number in range(1, 6):
        (level / f"{number}_a{number}.py").write_text("no problem, and counted all the same")
    words = ("bench", "report", run, "--baseline", baseline, "--suite-dir", tmp_path / "KernelBench")
    data = terminal.json(*words)
    assert data["problems"] == 5
    assert data["baselines"]["inductor"]["kernelbench"]["problems"] == 5
    assert data["baselines"]["inductor"]["all_samples"]["correct_rate"] == pytest.approx(0.2)


def test_what_is_missing_is_named(terminal, run, baseline, tmp_path):
    def said(*words):
        return terminal("bench", "report", *words, code=2).stderr

    assert "its kernels are of level 2" in said(run, "--baseline", baseline, "--level", 1)
    assert "no such file" in said(run, "--baseline", tmp_path / "none.json")
    assert "--baseline" in said(run)
    (run / "level_2_problem_1_sample_0_kernel.py").unlink()
    assert "give --level" in said(run, "--baseline", baseline)
    assert terminal.json("bench", "report", run, "--baseline", baseline, "--level", 2)["level"] == 2
    (run / "eval_results.json").unlink()
    (run / "level_2_problem_1_sample_0_kernel.py").write_text("")
    assert "nothing was judged" in said(run, "--baseline", baseline)
