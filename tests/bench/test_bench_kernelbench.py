"""KernelBench's files: read, written again, and the figures of its own analysis."""

from __future__ import annotations

import html
import json

import pytest

from kernelwright.bench import KernelBenchRun, html_of, read_baseline, read_run, report_of_claims, write_run
from kernelwright.bench._kernelbench import Slot, kernelbench_figures, problem_name, read_results
from kernelwright.bench._summary import Asked, break_down
from kernelwright.errors import UsageError


def entry(sample=0, *, compiled=True, correct=True, runtime=-1.0, **more):
    return {
        "sample_id": sample,
        "compiled": compiled,
        "correctness": correct,
        "metadata": {"hardware": "NVIDIA H100", "note": "κ"},
        "runtime": runtime,
        "runtime_stats": {"mean": runtime, "std": 0.01},
        **more,
    }


RESULTS = {
    "1": [entry(runtime=2.0), entry(1, runtime=0.5)],
    "2": [entry(correct=False), entry(1, compiled=False, correct=False)],
    "3": [entry(runtime=8.0)],
    "10": [entry(runtime=1.0)],
    "11": [entry(compiled=False, correct=False, error="no nvcc")],
}
BASELINE = {1: 4.0, 2: 1.0, 3: 4.0, 10: 1.0, 11: 3.0}


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / "eval_results.json").write_text(json.dumps(RESULTS, indent=4))
    (folder / "generation_config.yaml").write_text("level: 2\n")
    for problem, samples in RESULTS.items():
        for sample in samples:
            name = f"level_2_problem_{problem}_sample_{sample['sample_id']}_kernel.py"
            (folder / name).write_text(f"# {problem}\nclass ModelNew: ...\r\n", newline="")
    return folder


@pytest.fixture
def baseline(tmp_path):
    path = tmp_path / "baseline.json"
    data = {"level2": {f"{n}_Some_name.py": {"mean": ms, "std": 0.0, "num_trials": 100} for n, ms in BASELINE.items()}}
    path.write_text(json.dumps(data))
    return path


def test_a_run_is_written_as_it_was_read(run, tmp_path):
    found = read_run(run)
    assert found.level == 2
    assert (
        set(found.kernels)
        == set(found.entries)
        == {Slot(int(p), s["sample_id"]) for p, r in RESULTS.items() for s in r}
    )
    write_run(tmp_path / "again" / "there", found)
    again = tmp_path / "again" / "there"
    assert json.loads((again / "eval_results.json").read_text()) == RESULTS
    for path in run.glob("*_kernel.py"):
        assert (again / path.name).read_bytes() == path.read_bytes()
    assert read_run(again) == found


def test_only_kernels_or_only_results_are_a_run_too(run):
    (run / "eval_results.json").rename(run.parent / "eval_results.json")
    assert not read_run(run).entries
    assert len(read_run(run).kernels) == 7
    alone = read_run(run.parent)
    assert (alone.level, len(alone.kernels), len(alone.entries)) == (None, 0, 7)


def test_the_figures_are_those_of_kernelbench(run, baseline):
    """By hand: the first samples of 1, 3 and 10 are right, with ratios 2, 0.5 and 1; of 6 problems, 5 have a time."""
    figures = kernelbench_figures(read_run(run).entries, read_baseline(baseline, 2), [1, 2, 3, 10, 11, 12])
    assert (figures.problems, figures.compiled, figures.correct, figures.aligned) == (6, 4, 3, 5)
    assert figures.geometric_mean == pytest.approx(1.0)
    assert figures.fast_p == {"0": 0.6, "0.5": 0.4, "0.8": 0.4, "1": 0.2, "1.5": 0.2, "2": 0.0}


def test_no_correct_sample_is_a_mean_of_zero(baseline):
    entries = {Slot(1, 0): entry(correct=False), Slot(1, 1): entry(1, runtime=1.0)}
    figures = kernelbench_figures(entries, read_baseline(baseline, 2), [1, 2])
    assert (figures.geometric_mean, figures.correct, figures.fast_p["0"]) == (0.0, 0, 0.0)


def test_outcomes_of_a_run_have_the_figures_of_many_samples(run, baseline):
    outcomes = read_run(run).outcomes({"eager": read_baseline(baseline, 2)}, level=2)
    asked = [Asked(name=problem_name(n), level=2) for n in (1, 2, 3, 10, 11, 12)]
    many = break_down(outcomes, asked, "eager").all
    assert (many.samples, many.problems, many.timed) == (7, 6, 3)
    assert many.fast_p["2"] == pytest.approx(1 / 6), "the second sample of problem 1 is 8 times as fast"
    assert many.statuses == {"COMPILE_ERROR": 2, "INCORRECT": 1, "PASSED": 4}
    first = break_down(outcomes, asked, "eager", only_first=True).all
    assert first.samples == 5
    assert first.fast_p["2"] == 0.0
    assert first.geometric_mean.median == pytest.approx(1.0)


def test_one_entry_in_place_of_a_list_is_read_too(tmp_path):
    path = tmp_path / "eval_results.json"
    older = {"1": entry(runtime=2.0), "7": {"compiled": False, "correctness": False}}
    path.write_text(json.dumps(older))
    assert read_results(path) == {Slot(1, 0): older["1"], Slot(7, 0): older["7"]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "it is no JSON"),
        ("[]", "it is no object of problems"),
        ('{"one": []}', "'one' is no number of a problem"),
        ('{"1": [3]}', "problem 1 has an entry that is no result"),
        ('{"1": [{"sample_id": "0"}]}', "problem 1 has an entry that is no result"),
        ('{"1": [{"sample_id": 2}, {"sample_id": 2}]}', "problem 1 has sample 2 twice"),
    ],
)
def test_results_that_are_malformed_are_named(tmp_path, text, said):
    path = tmp_path / "eval_results.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        read_results(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "it has no level2"),
        ('{"level2": {"Some_name.py": {"mean": 1.0}}}', "'Some_name.py' has no number"),
        ('{"level2": {"1_a.py": {"mean": "fast"}}}', "no mean in milliseconds"),
        ('{"level2": {"1_a.py": {"mean": NaN}}}', "no mean in milliseconds"),
        ('{"level2": {"1_a.py": {"mean": 0}}}', "no mean in milliseconds"),
    ],
)
def test_baselines_that_are_malformed_are_named(tmp_path, text, said):
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        read_baseline(path, 2)


def test_times_that_are_none_are_left_out(baseline):
    broken = (float("nan"), float("inf"), -1, 0, None, "2", True)
    entries = {Slot(1, 0): entry(runtime=2.0)}
    for runtime in broken:
        found = {**entries, Slot(3, 0): entry(runtime=runtime)}
        figures = kernelbench_figures(found, read_baseline(baseline, 2), [1, 3])
        assert (figures.correct, figures.geometric_mean) == (2, pytest.approx(2.0)), runtime
        assert figures.fast_p["0"] == 0.5  # their fastp divides by the -1, and no negative speedup is above 0
        assert figures.fast_p["0.5"] == 0.5


NAN = float("nan")


@pytest.mark.parametrize(
    ("runtimes", "said"),
    [
        ((2.0, -1.0, NAN), "2 of 3 LEFT OUT give nan"),
        ((2.0, -1.0), "1 of 2 LEFT OUT give nan"),
        ((-1.0,), "1 of 1 LEFT OUT give -4"),
        ((2.0, None), "1 of 2 LEFT OUT end with an error"),
        ((2.0, 8.0), ""),
    ],
)
def test_where_the_mean_is_not_that_of_kernelbench_the_report_says_so(baseline, runtimes, said):
    """Against times of 4, 4 and 1 ms."""
    why = "right samples have no time and are left out of the geometric mean; KernelBench's script would"
    said = said.replace("LEFT OUT", why)
    entries = {Slot(number, 0): entry(runtime=ms) for number, ms in zip((1, 3, 10), runtimes, strict=False)}
    run = KernelBenchRun(2, {}, entries)
    report = report_of_claims("mine", run, {"eager": read_baseline(baseline, 2)}, [1, 2, 3, 10], "of the suite")
    assert report.lines[1:] == ([f"against eager, {said}"] if said else [])
    rows = {label: own for label, own, _ in report.tables[0].rows}
    timed = sum(ms is not None and ms > 0 for ms in runtimes)
    assert rows["right samples with a time"] == f"{timed} of {len(runtimes)}"
    assert html.escape(said) in html_of(report)


@pytest.mark.parametrize("runtime", [NAN, float("inf"), None, "NaN", "2", True])
def test_a_runtime_that_is_no_number_goes_out_as_one_that_was_not_taken(tmp_path, runtime):
    """KernelBench's scripts divide by it; -1 is what they write themselves. Elsewhere JSON has null for what is NaN."""
    entries = {Slot(1, 0): entry(runtime=runtime), Slot(2, 0): entry(runtime=2.0)}
    entries[Slot(1, 0)]["runtime_stats"] = {"mean": NAN, "std": "Infinity", "num_trials": 100}
    write_run(tmp_path, KernelBenchRun(2, {}, entries))
    text = (tmp_path / "eval_results.json").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    first, second = (samples[0] for samples in json.loads(text).values())
    assert first["runtime"] == -1.0
    assert first["runtime_stats"] == {"mean": None, "std": None, "num_trials": 100}
    assert second == entries[Slot(2, 0)]


def test_folders_that_are_no_run_are_named(tmp_path, run):
    with pytest.raises(UsageError, match="no such folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="holds no KernelBench run"):
        read_run(tmp_path)
    (run / "level_3_problem_1_sample_0_kernel.py").write_text("")
    with pytest.raises(UsageError, match="kernels of levels 2 and 3"):
        read_run(run)
    (run / "level_3_problem_1_sample_0_kernel.py").unlink()
    (run / "level_2_problem_4_sample_0_kernel.py").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"cannot read .*problem_4_sample_0"):
        read_run(run)


def test_kernels_without_a_level_cannot_be_written(tmp_path, run):
    with pytest.raises(UsageError, match="their level"):
        write_run(tmp_path / "out", read_run(run)._replace(level=None))
    assert not (tmp_path / "out").exists()
