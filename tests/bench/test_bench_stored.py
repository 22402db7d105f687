"""A bench of the store: its outcomes, its report, and the files of others that it is read from and written to."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import pytest
from campaign_fakes import ENVIRONMENT, make_evaluation

from kernelwright.bench import (
    KernelBenchRun,
    baselines_json,
    html_of,
    load_bench,
    markdown_of,
    read_baseline,
    read_run,
    report_of,
    runs_of_bench,
    submission_json,
    write_run,
)
from kernelwright.bench._exchange import rows_of_bench, samples_of_run
from kernelwright.bench._kernelbench import Slot
from kernelwright.campaign import SamplePlan, Sampler
from kernelwright.config import Settings
from kernelwright.errors import UsageError
from kernelwright.records import Candidate, Finding, Problem, ProblemMeta, Profile, Status, TimingSample
from kernelwright.records.verdicts import TOO_SMALL_TO_TIME
from kernelwright.store import Sample, Store


def problem(number, level=1, category="matmul"):
    name = f"p{number}"
    identity = {"id": f"KernelBench/level{level}/{name}", "suite": "KernelBench", "level": level, "name": name}
    path = f"/somewhere/KernelBench/level{level}/{number}_{name}_.py"
    return Problem(**identity, number=number, source=f"# {name}", meta=ProblemMeta(category=category), path=path)


PROBLEMS = [problem(1), problem(2), problem(3, category="loss")]


@pytest.fixture
def settings(tmp_path):
    return Settings(store=tmp_path / "store.db", cache_dir=tmp_path / "cache")


@pytest.fixture
def store(settings):
    with Store.open(settings.store) as opened:
        yield opened


def candidate(of, number):
    return Candidate(problem_id=of.id, source=f"kernel {of.name} {number}\r\n", backend="cpp", author="offline")


def made(settings, store, samples, problems=PROBLEMS, origin="written"):
    return Sampler(settings, store).create(SamplePlan(name="mine", samples=2, origin=origin), problems, samples)


def sampled(of, number, **fields):
    return Sample(**({"problem": of.id, "number": number, "candidate": candidate(of, number)} | fields))


def judge(store, run_id, of, number, **how):
    store.record_evaluation(make_evaluation(candidate(of, number), **how), run_id=run_id)


@pytest.fixture
def run_id(settings, store):
    """Two samples each of three problems: two right ones, two refused ones, and two that never came."""
    found = made(
        settings,
        store,
        [
            sampled(PROBLEMS[0], 0),
            sampled(PROBLEMS[0], 1),
            sampled(PROBLEMS[1], 0),
            sampled(PROBLEMS[1], 1),
            *(sampled(PROBLEMS[2], n, candidate=None, reason="no code in the reply") for n in (0, 1)),
        ],
    )
    roofline = Profile(rung="x", metrics={"distance_to_roofline": 2.0})
    judge(store, found, PROBLEMS[0], 0, speedup=4.0, latency_ms=0.25, profile=roofline)
    judge(store, found, PROBLEMS[0], 1, speedup=2.0, latency_ms=0.5)
    for number, status in enumerate((Status.REWARD_HACK, Status.TIMEOUT)):
        rejudge(store, found, PROBLEMS[1], number, {"status": status}, as_kernelbench=True)
    return found


@pytest.fixture
def bench(store, run_id):
    return load_bench(store, store.run(run_id))


def by_sample(bench, outcomes=None):
    return {(o.problem[-2:], o.sample): o for o in (bench.outcomes() if outcomes is None else outcomes)}


def rejudge(store, run_id, of, number, how=None, /, **changes):
    """Judge a sample again, with some fields of the verdict changed."""
    evaluation = make_evaluation(candidate(of, number), **(how or {}))
    verdict = evaluation.verdict.model_copy(update=changes)
    store.record_evaluation(evaluation.model_copy(update={"verdict": verdict}), run_id=run_id)
    return load_bench(store, store.run(run_id))


def test_outcomes_are_those_of_the_verdicts(bench):
    outcomes = by_sample(bench)
    assert len(outcomes) == 6
    best = outcomes["p1", 0]
    assert (best.level, best.category, best.status) == (1, "matmul", "PASSED")
    assert (best.compiled, best.correct, best.speedups) == (True, True, {"eager": 4.0, "compile": 1.2})
    assert best.sol == pytest.approx(1 / (1 + (0.25 - 0.125) / (1.0 - 0.125)))
    assert outcomes["p1", 1].sol is None
    refused = outcomes["p2", 0]
    assert (refused.compiled, refused.correct, refused.speedups) == (True, False, {})
    nothing = outcomes["p3", 0]
    assert (nothing.compiled, nothing.correct, nothing.status) == (False, False, "NO_CANDIDATE")
    assert (bench.unjudged, list(bench.environments)) == (0, [ENVIRONMENT])


def test_what_was_refused_before_it_was_built_was_not_built(store, run_id):
    changes = {"status": Status.REWARD_HACK, "stage": None, "failed_stage": "screen", "reason": "x", "timing": None}
    bench = rejudge(store, run_id, PROBLEMS[0], 0, **changes)
    assert not by_sample(bench)["p1", 0].compiled
    (run,) = runs_of_bench(store, bench).values()
    assert run.entries[Slot(1, 0)]["compiled"] is False


def test_what_strictness_caught_is_a_result_of_its_own(bench):
    loose = {place: o.correct for place, o in by_sample(bench, bench.outcomes_by_kernelbench()).items()}
    assert loose == {(f"p{p}", n): p < 3 for p in (1, 2, 3) for n in (0, 1)}
    assert bench.caught() == {"REWARD_HACK": 1, "TIMEOUT": 1}


def test_kernelbenchs_rule_may_be_the_stricter_one(store, run_id):
    bench = rejudge(store, run_id, PROBLEMS[0], 0, as_kernelbench=False)
    assert by_sample(bench)["p1", 0].correct
    assert not by_sample(bench, bench.outcomes_by_kernelbench())["p1", 0].correct


def test_a_time_that_says_nothing_is_no_speedup(store, run_id):
    small = Finding(rule=TOO_SMALL_TO_TIME, effect="informs", evidence="0.4 us")
    bench = rejudge(store, run_id, PROBLEMS[0], 0, findings=(small,))
    assert by_sample(bench)["p1", 0].speedups == {}
    assert by_sample(bench)["p1", 0].correct
    report = report_of(bench, "mine")
    assert "1 sample too small to time" in markdown_of(report)


def test_a_line_of_fast_p_begins_at_the_problems_with_a_time(store, run_id):
    small = Finding(rule=TOO_SMALL_TO_TIME, effect="informs", evidence="0.4 us")
    for sample in (0, 1):
        bench = rejudge(store, run_id, PROBLEMS[0], sample, findings=(small,))
    report = report_of(bench, "mine")
    whole = report.data["baselines"]["eager"]["all"]
    assert whole["timed"] < whole["correct_rate"] * whole["problems"]
    (svg,) = (plot.svg for plot in report.plots if plot.name == "fast_p")
    _, height = re.search(r'points="([\d.]+),([\d.]+)', svg).groups()
    (none, all_of_them) = (float(re.search(rf'y="([\d.]+)" text-anchor="end">{level}<', svg)[1]) - 4 for level in "01")
    share = (none - float(height)) / (none - all_of_them)
    assert share == pytest.approx(whole["timed"] / whole["problems"], abs=0.01), "it begins where fast_p does"


def test_the_latest_verdict_counts_and_none_that_is_quarantined(store, run_id):
    judge(store, run_id, PROBLEMS[0], 0, speedup=3.0)
    withdrawn = make_evaluation(candidate(PROBLEMS[0], 1), speedup=99.0)
    store.quarantine(store.record_evaluation(withdrawn, run_id=run_id), "too good to be true")
    outcomes = by_sample(load_bench(store, store.run(run_id)))
    assert [outcomes["p1", n].speedups["eager"] for n in (0, 1)] == [3.0, 2.0]


def elsewhere(store, run_id, of, number, backend="cpp", **how):
    """A verdict of another machine."""
    other = ENVIRONMENT.model_copy(update={"device": "another cpu"})
    given = candidate(of, number).model_copy(update={"backend": backend})
    made_there = make_evaluation(given, **how)
    verdict = made_there.verdict.model_copy(update={"environment": other.id})
    store.record_evaluation(made_there.model_copy(update={"verdict": verdict, "environment": other}), run_id=run_id)
    return other


def test_verdicts_of_other_machines_stay_apart(store, run_id):
    other = elsewhere(store, run_id, PROBLEMS[1], 1, speedup=7.0)
    latest = load_bench(store, store.run(run_id))
    assert list(latest.environments) == [other]
    assert [o.problem[-2:] for o in latest.outcomes() if o.correct] == ["p2"]
    assert [problem.name for problem in latest.finished] == ["p3"]
    first = load_bench(store, store.run(run_id), ENVIRONMENT.id[:6])
    assert [o.speedups["eager"] for o in first.outcomes() if o.correct] == [4.0, 2.0]
    with pytest.raises(UsageError, match="nothing of this bench was judged in 'zzz'") as error:
        load_bench(store, store.run(run_id), "zzz")
    assert ENVIRONMENT.id in error.value.hint


def test_languages_are_judged_in_environments_of_their_own(settings, store):
    given = [candidate(PROBLEMS[0], 0), candidate(PROBLEMS[0], 1).model_copy(update={"backend": "cuda"})]
    samples = [sampled(PROBLEMS[0], number, candidate=one) for number, one in enumerate(given)]
    run_id = made(settings, store, samples, [PROBLEMS[0]])
    elsewhere(store, run_id, PROBLEMS[0], 1, backend="cuda", speedup=7.0)
    judge(store, run_id, PROBLEMS[0], 0, speedup=2.0)
    bench = load_bench(store, store.run(run_id))
    assert [o.speedups["eager"] for o in bench.outcomes()] == [2.0, 7.0]
    assert len(bench.environments) == 2


def test_a_report_has_every_figure_in_all_its_forms(bench):
    report = report_of(bench, "mine <&>")
    eager = report.data["baselines"]["eager"]["all"]
    assert (eager["problems"], eager["samples"], eager["timed"]) == (3, 6, 1)
    assert eager["correct_rate"] == pytest.approx(1 / 3)
    assert eager["geometric_mean"]["median"] == pytest.approx(4.0)
    assert report.data["by_kernelbench_rule"]["correct_rate"] == pytest.approx(2 / 3)
    assert report.data["caught"] == {"REWARD_HACK": 1, "TIMEOUT": 1}
    assert json.loads(json.dumps(report.data)) == report.data

    page, text = html_of(report), markdown_of(report)
    assert "mine &lt;&amp;&gt;" in page
    assert "<&>" not in page
    for said in ("let pass there, here REWARD_HACK", "category", "fast_1.5", "matmul", "6 samples by offline"):
        assert said in text
    assert "| all | 3 | 33.3% |" in text
    assert page.count("<svg") == 3
    for plot in report.plots:
        ET.fromstring(plot.svg)
    assert "![" not in text
    assert "![How samples ended](<some outcomes.svg>)" in markdown_of(report, {"outcomes": "some outcomes.svg"})
    assert "KernelBench/level1/p1: 4.00x" in page


def test_what_was_refused_and_not_asked_is_said_to_be_unknown_to_the_other_rule(settings, store):
    run_id = made(settings, store, [sampled(PROBLEMS[0], 0), sampled(PROBLEMS[0], 1)], [PROBLEMS[0]])
    judge(store, run_id, PROBLEMS[0], 0, status=Status.REWARD_HACK)
    rejudge(store, run_id, PROBLEMS[0], 1, {"status": Status.TIMEOUT}, as_kernelbench=True)
    report = report_of(load_bench(store, store.run(run_id)), "mine")
    assert (report.data["untried"], report.data["caught"]) == (1, {"TIMEOUT": 1})
    assert "| refused here and not asked there, wrong in both columns |  | 1 |" in markdown_of(report)
    judge(store, run_id, PROBLEMS[0], 0)
    report = report_of(load_bench(store, store.run(run_id)), "mine")
    assert report.data["untried"] == 0
    assert "not asked there" not in markdown_of(report)


def test_what_is_not_finished_counts_neither_for_nor_against(settings, store):
    given = [sampled(PROBLEMS[0], 0), sampled(PROBLEMS[0], 1), sampled(PROBLEMS[1], 0), sampled(PROBLEMS[1], 1)]
    run_id = made(settings, store, given)
    assert report_of(load_bench(store, store.run(run_id)), "mine").data["baselines"] == {}
    for number in (0, 1):
        judge(store, run_id, PROBLEMS[0], number, speedup=2.0)
    judge(store, run_id, PROBLEMS[1], 0, status=Status.TIMEOUT)
    report = report_of(load_bench(store, store.run(run_id)), "mine")
    assert (report.data["finished"], report.data["unjudged"]) == (1, 1)
    assert report.data["baselines"]["eager"]["all"]["correct_rate"] == 1.0
    assert "2 problems not counted below: 1 sample not judged" in markdown_of(report)


def test_of_a_folder_that_was_imported_a_problem_without_a_sample_is_unsolved(settings, store):
    run_id = made(settings, store, [sampled(PROBLEMS[0], 0)], origin="imported")
    judge(store, run_id, PROBLEMS[0], 0)
    report = report_of(load_bench(store, store.run(run_id)), "mine")
    assert report.data["baselines"]["eager"]["all"]["correct_rate"] == pytest.approx(1 / 3)
    assert "2 problems without a sample, counted as unsolved" in markdown_of(report)


def test_a_bench_on_which_nothing_was_judged_has_a_report(settings, store):
    run_id = made(settings, store, [sampled(PROBLEMS[0], 0)])
    report = report_of(load_bench(store, store.run(run_id)), "mine")
    assert (report.data["environments"], report.tables) == ([], [])
    assert "none judged yet" in markdown_of(report)
    assert "<svg" not in html_of(report)


# ----------------------------------------------------------------------------------------------- files of others


def entry(number, **fields):
    return (
        {"sample_id": number, "compiled": True, "correctness": True, "metadata": {"hardware": "H100"}}
        | {
            "runtime": 1.5,
            "runtime_stats": {"mean": 1.5},
        }
        | fields
    )


def test_a_run_folder_that_nobody_judges_comes_back_as_it_was(settings, store, tmp_path):
    given = KernelBenchRun(
        1,
        {Slot(1, 0): "class ModelNew: ...\r\n", Slot(1, 1): "class ModelNew: ...\r\n", Slot(3, 0): "größer\n"},
        {Slot(1, 0): entry(0), Slot(3, 0): entry(0, correctness=False, runtime=-1.0), Slot(2, 4): entry(4, extra=None)},
    )
    write_run(tmp_path / "given", given)
    problems, samples, _ = samples_of_run(read_run(tmp_path / "given"), PROBLEMS, "cpp")
    run_id = made(settings, store, samples, problems, "imported")
    (run,) = runs_of_bench(store, load_bench(store, store.run(run_id))).values()
    write_run(tmp_path / "back", run)
    files = sorted(path.name for path in (tmp_path / "given").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "back").iterdir())
    for name in files:
        before, after = (tmp_path / folder / name for folder in ("given", "back"))
        if name.endswith(".json"):
            assert json.loads(before.read_text()) == json.loads(after.read_text())
        else:
            assert before.read_bytes() == after.read_bytes()


def test_a_runtime_that_is_nan_comes_back_as_one_that_was_not_taken(settings, store, tmp_path):
    """Never as the text "NaN", by which KernelBench's scripts cannot divide."""
    nan = float("nan")
    given = KernelBenchRun(1, {Slot(1, 0): "x"}, {Slot(1, 0): entry(0, runtime=nan, runtime_stats={"mean": nan})})
    problems, samples, _ = samples_of_run(given, PROBLEMS, "cpp")
    run_id = made(settings, store, samples, problems, "imported")
    (run,) = runs_of_bench(store, load_bench(store, store.run(run_id))).values()
    (back,) = run.entries.values()
    assert (back["runtime"], back["runtime_stats"]) == (-1.0, {"mean": None})


def test_what_was_judged_has_our_verdict_and_the_rest_its_own(settings, store):
    given = KernelBenchRun(
        1, {Slot(1, 0): "kernel p1 0\r\n", Slot(2, 0): "kernel p2 0\r\n"}, {Slot(1, 0): entry(0), Slot(2, 0): entry(0)}
    )
    problems, samples, _ = samples_of_run(given, PROBLEMS, "cpp")
    run_id = made(settings, store, samples, problems, "imported")
    kept = store.run_samples(run_id)[0].candidate
    store.record_evaluation(make_evaluation(kept, latency_ms=0.25), run_id=run_id)
    (run,) = runs_of_bench(store, load_bench(store, store.run(run_id))).values()
    assert run.entries[Slot(2, 0)] == entry(0)
    ours = run.entries[Slot(1, 0)]
    assert (ours["compiled"], ours["correctness"], ours["runtime"]) == (True, True, 0.25)
    assert (ours["metadata"]["status"], ours["runtime_stats"]["num_trials"]) == ("PASSED", 1)


def test_problems_of_two_suites_with_one_number_are_one_to_kernelbench(settings, store):
    other = PROBLEMS[0].model_copy(update={"id": "Other/level1/p1", "suite": "Other"})
    run_id = made(settings, store, [], [PROBLEMS[0], other])
    bench = load_bench(store, store.run(run_id))
    for export in (lambda: runs_of_bench(store, bench), lambda: submission_json(bench, "x")):
        with pytest.raises(UsageError, match="are one problem to KernelBench"):
            export()


def test_another_variant_is_never_taken_for_the_file_s_first_one(settings, store):
    variant = PROBLEMS[0].model_copy(update={"id": f"{PROBLEMS[0].id}@1", "variant": 1})
    run_id = made(settings, store, [], [variant])
    bench = load_bench(store, store.run(run_id))
    exports = (
        lambda: runs_of_bench(store, bench),
        lambda: submission_json(bench, "x"),
        lambda: baselines_json(store, bench),
    )
    for export in exports:
        with pytest.raises(UsageError, match="p1@1 has other sizes than its file's first ones"):
            export()


def test_problems_that_the_level_lacks_are_named(settings, store):
    with pytest.raises(UsageError, match="that the suite's level lacks: 7"):
        samples_of_run(KernelBenchRun(1, {Slot(7, 0): "x"}, {}), PROBLEMS, "cpp")
    unnumbered = Problem(id="a/level1/b", suite="a", level=1, name="b", source="")
    run_id = made(settings, store, [], [unnumbered])
    bench = load_bench(store, store.run(run_id))
    for export in (lambda: runs_of_bench(store, bench), lambda: submission_json(bench, "x")):
        with pytest.raises(UsageError, match="has no number"):
            export()


def test_baselines_are_read_back_by_the_reader_of_kernelbench(settings, store, tmp_path):
    run_id = made(settings, store, [sampled(PROBLEMS[0], 0)])
    evaluation = make_evaluation(candidate(PROBLEMS[0], 0))
    windows = [
        TimingSample(role=role, process=0, pair=pair, order=0, calls=1, latency_ms=ms)
        for role, times in (("candidate", (9.0,)), ("eager", (1.0, 3.0)), ("compile", (4.0, 4.0)))
        for pair, ms in enumerate(times)
    ]
    store.record_evaluation(evaluation.model_copy(update={"samples": tuple(windows)}), run_id=run_id)
    made_of = baselines_json(store, load_bench(store, store.run(run_id)))
    assert set(made_of) == {"eager", "compile"}
    path = tmp_path / "eager.json"
    path.write_text(json.dumps(made_of["eager"]))
    assert read_baseline(path, 1) == {1: 2.0}
    stats = made_of["eager"]["level1"]["1_p1_.py"]
    assert (stats["std"], stats["min"], stats["max"], stats["num_trials"]) == (1.0, 1.0, 3.0, 2)


def test_baselines_of_what_was_never_timed_are_refused(settings, store):
    run_id = made(settings, store, [sampled(PROBLEMS[0], 0)])
    with pytest.raises(UsageError, match="nothing of this bench was timed"):
        baselines_json(store, load_bench(store, store.run(run_id)))


def test_a_submission_has_the_fastest_right_kernel_of_each_problem(bench):
    submission = submission_json(bench, "Mine", "Us")
    assert submission["metadata"] == {"display_name": "Mine", "organization": "Us", "notes": ""}
    assert submission["kernels"] == {
        "level_1_problem_1_sample_0": "kernel p1 0\r\n",
        "level_1_problem_2_sample_0": "kernel p2 0\r\n",
    }


def test_rows_say_of_each_sample_what_is_known(bench):
    rows = list(rows_of_bench(bench))
    assert len(rows) == 6
    assert len({tuple(row) for row in rows}) == 1
    best, _, refused, _, nothing, _ = rows
    assert (best["status"], best["correct"], best["kernelbench_correct"]) == ("PASSED", True, True)
    assert (best["speedup_eager"], best["latency_ms"], best["backend"]) == (4.0, 0.25, "cpp")
    assert (refused["status"], refused["correct"], refused["kernelbench_correct"]) == ("REWARD_HACK", False, True)
    assert (refused["source"], refused["speedup_eager"]) == ("kernel p2 0\r\n", None)
    assert (nothing["candidate"], nothing["status"], nothing["reason"]) == (None, None, "no code in the reply")
