"""``bench`` over files of KernelBench."""

from __future__ import annotations

import json

import pyarrow.parquet
import pytest

from kernelwright.errors import InvalidReferenceError, MachineError

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
    page = terminal.folder / "out" / "report.html"
    text = terminal(*words, "--markdown", markdown, "--html", page).stdout
    for line in ("geometric mean speedup", "8.000 [8.000, 8.000]", "Against inductor", "Against eager"):
        assert line in text
    written = markdown.read_text()
    assert written.count("| geometric mean speedup | 2.0000 | 8.000 [8.000, 8.000] |") == 2
    assert "level 2, 3 problems" in written
    assert "![fast_p](<report-fast_p.svg>)" in written
    assert "against eager</text>" in (markdown.parent / "report-fast_p.svg").read_text()
    assert page.read_text().count("<svg") == 3


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


# ------------------------------------------------------------------------------------------------ benches of the store


@pytest.fixture
def suite(tmp_path):
    from campaign_fakes import REFERENCE

    folder = tmp_path / "KernelBench" / "level1"
    folder.mkdir(parents=True)
    for number, name in ((1, "plus"), (2, "more")):
        (folder / f"{number}_{name}.py").write_text(REFERENCE + f"\n# {name}\n")
    return tmp_path / "KernelBench"


@pytest.fixture
def words(suite):
    return ("--suite", "KernelBench", "--all", "--suite-dir", suite, "--coder", "scripted", "--samples", "1")


def test_one_command_writes_judges_and_reports_and_goes_on_where_it_was(terminal, words):
    page = terminal.folder / "report.html"
    data = terminal.json("bench", "run", "mine", *words, "--html", page)
    assert (data["status"], data["problems"], data["unjudged"]) == ("finished", 2, 0)
    assert data["baselines"]["eager"]["all"]["geometric_mean"]["median"] == pytest.approx(1.1)
    assert "<svg" in page.read_text()
    judged = len(terminal.referee.judged)
    text = terminal("bench", "run", "mine").stdout
    assert "100.0%" in text
    assert "KernelBench's rule" in text
    assert len(terminal.referee.judged) == judged == 2
    markdown = terminal.folder / "my report.md"
    terminal("bench", "report", "mine", "--markdown", markdown)
    assert "![How samples ended](<my report-outcomes.svg>)" in markdown.read_text()
    for plot in ("fast_p", "speedups", "outcomes"):
        assert (terminal.folder / f"my report-{plot}.svg").read_text().startswith("<svg xmlns=")
    listed = terminal.json("bench", "list")["benches"]
    assert [(found["bench"], found["samples"]) for found in listed] == [("mine", 2)]
    assert terminal.json("bench", "report", "mine")["problems"] == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [(InvalidReferenceError, 1), (RecursionError, 1), (MachineError, 3)],
)
def test_a_problem_without_a_verdict_is_named_and_the_others_go_on(terminal, words, error, code):
    terminal.referee.faults = {"plus": [error("line 7 raises"), error("line 7 raises")]}
    data = terminal.json("bench", "run", "mine", *words, code=code)
    assert (data["status"], data["exit_code"]) == ("finished", code)
    (ended,) = data["without_verdict"]
    assert "line 7 raises" in ended["reason"]
    assert len(terminal.referee.judged) == 1
    terminal.referee.faults = {"plus": [error("line 7 raises"), error("line 7 raises")]}
    assert "1 of 2 problems ended without a verdict:" in terminal("bench", "run", "mine", code=code).stdout


def test_writing_and_judging_are_commands_of_their_own(terminal, words):
    written = terminal.json("bench", "generate", "mine", *words)
    assert (written["samples"], written["kernels"], written["status"]) == (2, 2, "paused")
    assert terminal.referee.judged == []
    said = terminal("bench", "report", "mine").stdout
    assert "2 problems not counted below: 2 samples not judged" in said
    assert terminal.json("bench", "evaluate", "mine")["unjudged"] == 0
    assert len(terminal.referee.judged) == 2


def test_a_bench_keeps_its_problems_and_its_coder(terminal, words, suite):
    terminal("bench", "generate", "mine", *words)
    for more, said in (
        (("--coder", "offline"), "is written by scripted"),
        (("KernelBench/level1/1", "--suite-dir", suite), "has other problems"),
    ):
        result = terminal("bench", "run", "mine", *more, code=2)
        assert said in result.stderr
    assert "no bench 'other' yet" in terminal("bench", "run", "other", code=2).stderr
    assert "no bench 'other'" in terminal("bench", "evaluate", "other", code=2).stderr
    assert "cannot be called '../x'" in terminal("bench", "generate", "../x", *words, code=2).stderr
    assert terminal.json("bench", "generate", "mine", "--samples", "2")["samples"] == 4
    assert "has 2 samples a problem" in terminal("bench", "generate", "mine", "--samples", "1", code=2).stderr


def test_a_run_folder_round_trips_through_the_store(terminal, suite, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    results = {"1": [entry(0, 2.0)], "2": [entry(0, None)]}
    (run / "eval_results.json").write_text(json.dumps(results))
    for number in (1, 2):
        (run / f"level_1_problem_{number}_sample_0_kernel.py").write_bytes(f"v{number}\r\n".encode())
    told = terminal.json("bench", "import", run, "--as", "theirs", "--suite-dir", suite)
    assert (told["level"], told["kernels"], told["claimed"]) == (1, 2, 2)
    back = tmp_path / "back"
    terminal("bench", "export", "theirs", back)
    assert json.loads((back / "eval_results.json").read_text()) == results
    assert (back / "level_1_problem_2_sample_0_kernel.py").read_bytes() == b"v2\r\n"

    data = terminal.json("bench", "evaluate", "theirs")
    assert data["baselines"]["eager"]["all"]["correct_rate"] == 1.0
    terminal("bench", "export", "theirs", back)
    entries = json.loads((back / "eval_results.json").read_text())
    assert entries["2"][0]["correctness"] is True
    assert entries["2"][0]["metadata"]["status"] == "PASSED"
    for form, place in (("leaderboard", "board.json"), ("jsonl", "rows")):
        terminal("bench", "export", "theirs", tmp_path / place, "--format", form)
    board = json.loads((tmp_path / "board.json").read_text())
    assert board["metadata"]["display_name"] == "theirs"
    assert sorted(board["kernels"]) == [f"level_1_problem_{n}_sample_0" for n in (1, 2)]
    assert [json.loads(line)["status"] for line in (tmp_path / "rows" / "samples.jsonl").read_text().splitlines()] == [
        "PASSED"
    ] * 2


def test_results_of_another_run_are_never_left_beside_a_run_s_kernels(terminal, words, tmp_path):
    """A reader of the folder would take them for results of the new kernels."""
    terminal("bench", "generate", "mine", *words)
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    for name in ("eval_results.json", "level_1_problem_1_sample_7_kernel.py"):
        (out / name).write_text("{}")
        said = terminal("bench", "export", "mine", out, code=2).stderr
        assert f"holds another run: {name}" in said
        assert len(list(out.iterdir())) == 2, "nothing was written"
        (out / name).unlink()
    for _ in range(2):  # the same bench again takes the place of its own files
        terminal("bench", "export", "mine", out)
    assert len(list(out.glob("*_kernel.py"))) == 2


def test_a_problem_that_cannot_be_read_keeps_no_other_one_from_being_imported(terminal, words, suite, tmp_path):
    run, board, rows = tmp_path / "run", tmp_path / "board.json", tmp_path / "rows"
    terminal("bench", "generate", "mine", *words)
    for form, place in (("kernelbench", run), ("leaderboard", board), ("jsonl", rows)):
        terminal("bench", "export", "mine", place, "--format", form)
    (broken,) = (suite / "level1").glob("1_*.py")
    broken.write_text("def (")
    for number, place in enumerate((run, board, rows)):
        words = ("bench", "import", place, "--suite-dir", suite)
        told = terminal.json(*words, "--as", f"back{number}")
        assert told["kernels"] == 1, place
        assert len(told["left_out"]) == 1
        assert told["left_out"][0].startswith("1 sample of KernelBench/level1/")
        assert "left out: 1 sample of" in terminal(*words, "--as", f"again{number}").stdout
    for path in (suite / "level1").glob("*.py"):
        path.write_text("def (")
    for place in (run, board, rows):
        assert terminal("bench", "import", place, "--as", "none", "--suite-dir", suite, code=2).stderr


@pytest.mark.parametrize("form", ["kernelbench", "baselines", "leaderboard"])
def test_files_of_kernelbench_never_take_results_in_other_sizes_for_those_of_its_problems(terminal, words, form):
    """They know a problem by its number or its file, and have no place for sizes."""
    terminal("bench", "run", "small", *words, "--set", "N=4")
    out = terminal.folder / "out"
    said = terminal("bench", "export", "small", out, "--format", form, code=2).stderr
    assert "KernelBench/level1/plus@N=4 has other sizes than its file's first ones" in said
    assert "--format jsonl" in said
    assert not out.exists()
    terminal("bench", "export", "small", out, "--format", "jsonl")
    assert "plus@N=4" in (out / "samples.jsonl").read_text()


def test_what_came_with_a_run_is_reported_by_the_formulae_of_kernelbench(terminal, suite, tmp_path):
    """A folder of results without kernels: nothing can be judged, and nothing is called wrong for it."""
    run, times = tmp_path / "run", tmp_path / "eager.json"
    run.mkdir()
    (run / "eval_results.json").write_text(json.dumps({"1": [entry(0, 2.0)], "2": [entry(0, None)]}))
    times.write_text(json.dumps({"level1": {"1_plus.py": {"mean": 4.0}, "2_more.py": {"mean": 1.0}}}))
    terminal("bench", "import", run, "--as", "theirs", "--level", 1, "--suite-dir", suite)
    words = ("--baseline", times, "--suite-dir", suite)
    imported = terminal.json("bench", "report", "theirs", *words)
    folder = terminal.json("bench", "report", run, "--level", 1, *words)
    assert imported["baselines"] == folder["baselines"]
    assert imported["baselines"]["eager"]["kernelbench"]["fast_p"]["1"] == pytest.approx(0.5)
    own = terminal.json("bench", "report", "theirs")
    assert (own["finished"], own["unjudged"]) == (0, 2)
    assert "2 problems not counted below: 2 samples not judged" in terminal("bench", "report", "theirs").stdout


def test_what_is_exported_as_rows_comes_back(terminal, words, tmp_path):
    terminal("bench", "run", "mine", *words, "--set", "N=4")
    for number, form in enumerate(("jsonl", "parquet")):
        out = tmp_path / form
        terminal("bench", "export", "mine", out, "--format", form)
        where = out if number else out / "samples.jsonl"
        told = terminal.json("bench", "import", where, "--as", f"back{number}", "--suite-dir", words[4])
        assert (told["format"], told["kernels"], told["claimed"]) == ("rows", 2, 0)
        again = tmp_path / f"again{number}"
        terminal("bench", "evaluate", f"back{number}")
        terminal("bench", "export", f"back{number}", again, "--format", "jsonl")
        ours, theirs = (
            [
                {key: json.loads(line)[key] for key in ("problem", "sample", "candidate", "source", "status", "author")}
                for line in (folder / "samples.jsonl").read_text().splitlines()
            ]
            for folder in (tmp_path / "jsonl", again)
        )
        assert ours == theirs
        assert "plus@N=4" in ours[0]["problem"]


def test_rows_that_cannot_be_samples_are_named(terminal, words, suite, tmp_path):
    terminal("bench", "generate", "mine", *words)
    terminal("bench", "export", "mine", tmp_path, "--format", "jsonl")
    file = tmp_path / "samples.jsonl"
    first = json.loads(file.read_text().splitlines()[0])
    for number, (lines, said) in enumerate(
        (
            ([{**first, "sample": -1}], "row 1 of"),
            ([{**first, "source": 3}], "row 1 of"),
            ([{key: value for key, value in first.items() if key != "source"}], "row 1 of"),
            ([first, first], "is there twice"),
            ([{**first, "problem_sha256": "0" * 64}], "is about another text of"),
            ([{**first, "problem": "KernelBench/level1/none"}], "no problem named"),
            ([{**first, "claimed": "[]"}], "a claim that is no object"),
            ([[]], "line 1 of"),
            ([], "has no row"),
        )
    ):
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        words = ("bench", "import", file, "--as", f"x{number}", "--suite-dir", suite)
        assert said in terminal(*words, code=2).stderr
    file.write_text("{")
    assert "no valid JSON" in terminal("bench", "import", file, "--as", "x", "--suite-dir", suite, code=2).stderr
    (tmp_path / "samples.parquet").write_text("no parquet")
    words = ("bench", "import", tmp_path / "samples.parquet", "--as", "x", "--suite-dir", suite)
    assert "cannot be read" in terminal(*words, code=2).stderr
    assert terminal.json("bench", "list")["benches"][0]["bench"] == "mine", "nothing of it was kept"


def test_a_submission_to_the_leaderboard_comes_back(terminal, words, suite, tmp_path):
    terminal("bench", "run", "mine", *words)
    board = tmp_path / "board.json"
    terminal("bench", "export", "mine", board, "--format", "leaderboard")
    told = terminal.json("bench", "import", board, "--as", "back", "--suite-dir", suite)
    assert (told["format"], told["kernels"], told["levels"]) == ("leaderboard", 2, [1])
    terminal("bench", "evaluate", "back")
    terminal("bench", "export", "back", tmp_path / "again.json", "--format", "leaderboard")
    assert json.loads((tmp_path / "again.json").read_text())["kernels"] == json.loads(board.read_text())["kernels"]
    for text, said in (
        ("{}", "no submission"),
        ('{"kernels": {"level_1_problem_9_sample_0": "x"}}', "that the suite's level lacks"),
        ('{"kernels": {"../x": "x"}}', "is no kernel"),
        ('{"kernels": {"level_1_problem_1_sample_0": 3}}', "is no kernel"),
    ):
        board.write_text(text)
        assert said in terminal("bench", "import", board, "--as", "y", "--suite-dir", suite, code=2).stderr


def test_a_folder_has_no_environments_to_choose_from(terminal, run, baseline):
    said = terminal("bench", "report", run, "--baseline", baseline, "--environment", "abc", code=2).stderr
    assert "--environment selects verdicts of the referee" in said


def test_a_folder_with_the_name_of_a_bench_is_reported_where_a_baseline_is_given(terminal, words, run, baseline):
    terminal("bench", "run", "mine", *words)
    terminal.folder.joinpath("mine").symlink_to(run)
    data = terminal.json("bench", "report", "mine", "--baseline", baseline)
    assert data["baselines"]["inductor"]["kernelbench"]["aligned"] == 3
    assert "finished" in terminal.json("bench", "report", "mine")
    assert "no bench 'none'" in terminal("bench", "report", "none", "--html", "x.html", code=2).stderr


def test_what_is_known_of_some_samples_is_reported_without_the_others(terminal, suite, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "eval_results.json").write_text(json.dumps({"1": [entry(0, 2.0), entry(1, 2.0)], "2": [entry(0, 2.0)]}))
    (run / "level_1_problem_1_sample_0_kernel.py").write_text("v1")
    terminal("bench", "import", run, "--as", "theirs", "--level", 1, "--suite-dir", suite)
    terminal("bench", "evaluate", "theirs")
    data = terminal.json("bench", "report", "theirs")
    assert (data["finished"], data["unjudged"]) == (1, 2)
    assert data["baselines"]["eager"]["all"]["correct_rate"] == 1.0


def test_a_bench_that_nobody_else_judged_has_no_such_figures(terminal, words, baseline):
    terminal("bench", "run", "mine", *words)
    assert "leave --baseline out" in terminal("bench", "report", "mine", "--baseline", baseline, code=2).stderr


def test_a_dataset_has_a_card_that_says_what_its_columns_are(terminal, words, tmp_path):
    terminal("bench", "run", "mine", *words)
    terminal("bench", "export", "mine", tmp_path / "out", "--format", "jsonl")
    card = (tmp_path / "out" / "README.md").read_text()
    row = json.loads((tmp_path / "out" / "samples.jsonl").read_text().splitlines()[0])
    assert card.startswith('---\npretty_name: "mine"\n')
    assert "data_files: samples.jsonl" in card
    for column in row:
        assert f"`{column}`" in card or column.startswith("speedup_"), column


def test_parquet_holds_the_rows_that_jsonl_holds(terminal, words, tmp_path):
    terminal("bench", "run", "mine", *words)
    for form in ("jsonl", "parquet"):
        terminal("bench", "export", "mine", tmp_path / form, "--format", form)
    rows = [json.loads(line) for line in (tmp_path / "jsonl" / "samples.jsonl").read_text().splitlines()]
    table = pyarrow.parquet.read_table(tmp_path / "parquet" / "samples.parquet")
    assert len(rows) == 2
    assert table.to_pylist() == rows
    kinds = {name: str(table.schema.field(name).type) for name in ("sample", "correct", "latency_ms", "claimed")}
    assert kinds == {"sample": "int64", "correct": "bool", "latency_ms": "double", "claimed": "string"}
    assert "data_files: samples.parquet" in (tmp_path / "parquet" / "README.md").read_text()


def test_references_are_timed_as_controls(terminal, suite):
    data = terminal.json("bench", "baselines", "times", "--suite", "KernelBench", "--all", "--suite-dir", suite)
    assert (data["passed"], data["timed"]) == (2, 2)
    assert [row["status"] for row in data["problems"]] == ["PASSED", "PASSED"]
    shown = terminal.json("runs", "show", "last")
    assert set(shown["config"]["baselines"]) == {
        "eager",
        "compile",
        "compile-reduce-overhead",
        "compile-max-autotune",
        "compile-max-autotune-no-cudagraphs",
    }
    assert "of 2 references passed as controls" in terminal("bench", "baselines", "times").stdout
    assert len(terminal.referee.judged) == 2


def test_sizes_are_set_by_the_option_that_sets_settings(terminal, words):
    data = terminal.json("bench", "generate", "small", *words, "--set", "N=4", "--set", "threads=1")
    assert data["samples"] == 2
    rows = terminal.json("bench", "run", "small")
    assert rows["problems"] == 2
    assert "N=4" in terminal("runs", "show", "last").stdout
    assert "nor a constant of these" in terminal("bench", "generate", "x", *words, "--set", "n=4", code=2).stderr
