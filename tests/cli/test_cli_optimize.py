"""``optimize``, ``resume`` and ``runs`` over a fake referee: tables, JSON, exit codes, stops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from campaign_fakes import REFERENCE

from kernelwright.errors import InvalidReferenceError, MachineError
from kernelwright.records import Status

HERE = Path(__file__).parent
SOFTMAX = "kernelwright/level1/softmax"
LAYER_NORM = "kernelwright/level1/layer_norm"


def test_the_winners_table_has_all_that_matters(terminal):
    result = terminal.optimize(SOFTMAX, LAYER_NORM)
    table = result.stdout
    for part in ("level1/softmax", "level1/layer_norm", "vs eager", "vs compile", "latency", "stage", "kernel"):
        assert part in table
    assert "2.00x [1.96, 2.04]" in table
    assert "1.20x [1.18, 1.22]" in table
    assert "500 µs" in table
    assert "confirmed" in table
    best = terminal.json("kernels", "best")["kernels"]
    assert {row["problem"] for row in best} == {SOFTMAX, LAYER_NORM}
    assert all(row["candidate"][:12] in table for row in best)
    assert f"kernelwright kernels export {best[0]['candidate'][:12]}" in table or "kernels export" in table
    assert "2 of 2 problems" in table
    assert "sandbox" not in table


def test_the_tables_say_where_libraries_have_a_part_in_a_winner(terminal, monkeypatch):
    import campaign_fakes

    for label, said in (("kernel", "confirmed "), ("hybrid", "confirmed (hybrid)"), ("library", "confirmed (library)")):
        monkeypatch.setitem(campaign_fakes.make_evaluation.__kwdefaults__, "label", label)
        assert said in terminal.optimize(SOFTMAX).stdout
        assert said in terminal("runs", "show", "last").stdout
    (best,) = terminal.json("kernels", "best")["kernels"]
    assert not best["eligible"], "no other one is faster"
    assert "confirmed, library" in terminal("kernels", "best").stdout


def test_progress_goes_to_stderr_as_plain_lines(terminal):
    result = terminal.optimize(SOFTMAX)
    assert "[1/1] kernelwright/level1/softmax" in result.stderr
    assert "round 2/3: PASSED 500 µs, 2.00x eager [1.96, 2.04]" in result.stderr
    assert "confirmation: PASSED" in result.stderr
    assert "\x1b" not in result.stderr + result.stdout
    assert "round 2/3" not in result.stdout


@pytest.mark.parametrize(
    ("confirmed", "said"),
    [
        (2.0, "faster than eager and compile: 2.00x eager [1.96, 2.04], 1.20x compile"),
        (0.94, "faster than compile: 0.94x eager [0.92, 0.96], 1.20x compile"),
        (None, "right, not faster: 0.94x eager [0.92, 0.96]"),
    ],
)
def test_faster_is_said_of_the_baselines_that_are_beaten_alone(terminal, monkeypatch, confirmed, said):
    import campaign_fakes

    if confirmed is None:
        defaults = {**campaign_fakes.make_evaluation.__kwdefaults__, "compiled": None}
        monkeypatch.setattr(campaign_fakes.make_evaluation, "__kwdefaults__", defaults)
    terminal.referee.confirmed_speedups = dict.fromkeys(("v0", "v1", "v2"), confirmed or 0.94)
    told = terminal.optimize(SOFTMAX).stderr
    assert f"  {said}" in told
    assert "won" not in told


def test_a_faster_kernel_is_offered_for_export_before_one_that_is_not(terminal):
    slow = dict.fromkeys(("v0", "v1", "v2"), 0.94)
    terminal.referee.confirmed_speedups = slow
    terminal.referee.point = lambda where: slow.clear() if where == "open layer_norm" else None
    shown = terminal.optimize(SOFTMAX, LAYER_NORM).stdout
    first, second = terminal.json("runs", "show", "last")["problems"]
    assert (first["speedup"]["eager"]["faster"], second["speedup"]["eager"]["faster"]) == (False, True)
    assert "right kernels for 2 of 2 problems" in shown
    assert f"kernels export {second['candidate'][:12]}" in shown


def test_json_is_one_object_with_every_row(terminal):
    data = terminal.json("optimize", SOFTMAX, LAYER_NORM, "--coder", "scripted", "--judge", "scripted")
    assert data["status"] == "finished"
    assert data["exit_code"] == 0
    assert [row["problem"] for row in data["problems"]] == [SOFTMAX, LAYER_NORM]
    row = data["problems"][0]
    assert row["speedup"]["eager"] == {"median": 2.0, "low": 1.96, "high": 2.04, "faster": True}
    assert row["stage"] == "confirmed"
    assert len(row["candidate"]) == 64
    assert data["sandbox"] == ["bubblewrap", "namespaces:user,pid"]


def test_a_problem_without_a_kernel_gives_exit_code_1(terminal):
    terminal.referee.faults = {"softmax": [InvalidReferenceError("forward returns nothing", line=9)]}
    result = terminal.optimize(SOFTMAX, LAYER_NORM, code=1)
    assert "INVALID_REFERENCE" in result.stdout
    assert "vs eager: faster in 1 of 2, median 1.50x, geometric mean 1.41x" in result.stdout
    assert "forward returns nothing" in result.stdout
    assert "1 of 2 problems" in result.stdout


def test_a_weak_sandbox_is_named_under_the_table(terminal, monkeypatch):
    import campaign_fakes

    monkeypatch.setattr(campaign_fakes.make_evaluation, "__kwdefaults__", weak_defaults(campaign_fakes))
    assert "not complete here (no-namespaces); its layers: no-namespaces, process" in terminal.optimize(SOFTMAX).stdout


def weak_defaults(module):
    return {**module.make_evaluation.__kwdefaults__, "sandbox": ("process", "no-namespaces")}


def test_which_problems(terminal):
    plan = terminal.json("optimize", "--level", 1, "--dry-run")
    assert len(plan["problems"]) >= 10
    assert all("/level1/" in name for name in plan["problems"])
    assert len(terminal.json("optimize", "--all", "--dry-run")["problems"]) >= 30
    plan = terminal.json("optimize", "softmax", SOFTMAX, "--dry-run")
    assert plan["problems"] == [SOFTMAX]


def test_a_dry_run_does_nothing(terminal):
    result = terminal("optimize", SOFTMAX, "--rounds", 4, "--dry-run")
    assert "at most 4 candidates" in result.stdout
    assert not terminal.store.exists()
    assert terminal.referee.judged == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "which problem?"),
        (("softmx",), "did you mean kernelwright/level1/softmax"),
        (("--suite", "kernelwrigt"), "did you mean kernelwright?"),
        (("softmax", "--coder", "policy:mine"), "no schedule policy"),
        (("softmax", "--judge", "policy:mine"), "unknown judge"),
        (("softmax", "--coder", "nobody"), "unknown coder"),
        (("softmax", "--recipe", "kevim"), "unknown recipe"),
        (("softmax", "--set", "roundz=3"), "did you mean rounds"),
        (("softmax", "--rounds", "0"), "Invalid value for '--rounds'"),
        (("softmax", "--backend", "fortran"), "Invalid value for '--backend'"),
        (("missing.py",), "no such file"),
        (("softmax", "--config", "none.toml"), "none.toml"),
    ],
)
def test_bad_requests_are_usage_errors(terminal, words, message):
    result = terminal("optimize", *words, code=2)
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    error = terminal.json("optimize", *words, code=2)["error"]
    assert error["exit_code"] == 2


def test_a_file_that_breaks_the_contract_names_the_line(terminal, tmp_path):
    path = tmp_path / "broken.py"
    path.write_text(REFERENCE.replace("class Model(", "class Modell("))
    result = terminal("optimize", path, code=1)
    assert "Model" in result.stderr
    assert "INVALID_REFERENCE" in result.stderr
    assert terminal.json("optimize", path, code=1)["error"]["type"] == "InvalidReferenceError"


def test_a_file_that_breaks_the_contract_does_not_stop_the_others(terminal, tmp_path):
    path = tmp_path / "broken.py"
    path.write_text(REFERENCE.replace("return x + 1", "x + 1"))
    result = terminal.optimize(path, SOFTMAX, code=1)
    assert "1 of 2 problems" in result.stdout
    assert "2.00x" in result.stdout
    assert "INVALID_REFERENCE" in result.stdout
    assert "line 9" in result.stdout


def test_a_foreign_store_is_named_and_left_alone(terminal):
    terminal.store.write_text("a letter, and no database")
    result = terminal.optimize(SOFTMAX, code=3)
    assert "store.db" in result.stderr
    assert terminal.store.read_text() == "a letter, and no database"


def test_a_spent_budget_is_exit_code_4_and_says_how_to_go_on(terminal):
    result = terminal.optimize(SOFTMAX, "--max-minutes", "0.0000001", code=4)
    run = terminal.json("runs", "list")["runs"][0]["run"]
    assert f"resume with: kernelwright resume {run} --max-minutes M" in result.stderr
    done = terminal("resume", "last", "--max-minutes", 60)
    assert "2.00x" in done.stdout


def test_resume_of_nothing(terminal):
    assert "holds no run" in terminal("resume", "last", code=2).stderr
    terminal.optimize(SOFTMAX)
    assert "no run 'ZZZ'" in terminal("resume", "ZZZ", code=2).stderr
    assert "is finished" in terminal("resume", "last", code=2).stderr


def test_runs_list_show_cancel(terminal):
    terminal.referee.faults = {"layer_norm": [MachineError("x"), MachineError("no pulse")]}
    terminal.optimize(SOFTMAX, LAYER_NORM, code=1)
    listed = terminal.json("runs", "list")["runs"]
    assert [(run["status"], run["problems"], run["right"]) for run in listed] == [("finished", 2, 1)]
    assert listed[0]["run"] in terminal("runs", "list").stdout
    shown = terminal.json("runs", "show", listed[0]["run"])
    assert shown["config"]["rounds"] == 3
    assert [row["state"] for row in shown["problems"]] == ["done", "failed"]
    assert "no pulse" in shown["problems"][1]["reason"]
    assert "level1/softmax" in terminal("runs", "show", "last").stdout
    assert "already finished" in terminal("runs", "cancel", "last", code=2).stderr
    terminal.optimize(SOFTMAX, "--max-minutes", "0.0000001", code=4)
    assert terminal.json("runs", "cancel", "last")["status"] == "cancelled"
    assert "is cancelled" in terminal("resume", "last", code=2).stderr


def test_no_winner_is_no_pass(terminal):
    terminal.referee.statuses = dict.fromkeys(("v0", "v1", "v2"), Status.INCORRECT_NUMERICAL)
    result = terminal.optimize(SOFTMAX, code=1)
    assert "INCORRECT_NUMERICAL" in result.stdout
    assert "0 of 1 problems" in result.stdout
    assert "kernels export" not in result.stdout


# ------------------------------------------------------------------------------------------ processes


def start(folder: Path, *words: str, hold: tuple[int, int] | None = None) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE.parent / "campaign")]),
        "KERNELWRIGHT_STORE": str(folder / "store.db"),
        "KERNELWRIGHT_CACHE_DIR": str(folder / "cache"),
        "KERNELWRIGHT_CODER": "scripted",
        "KERNELWRIGHT_JUDGE": "scripted",
    }
    if hold:
        environment["KW_TEST_HOLD"] = f"{hold[0]},{hold[1]}"
    return subprocess.Popen(
        [sys.executable, str(HERE / "cli_fake_main.py"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=folder,
        pass_fds=hold or (),
    )


class Held:
    """A run that waits in the middle of judging its second candidate."""

    def __init__(self, folder: Path, *words: str) -> None:
        ready_read, ready_write = os.pipe()
        go_read, self._go = os.pipe()
        self.process = start(folder, "optimize", SOFTMAX, "--rounds", "3", *words, hold=(go_read, ready_write))
        os.close(ready_write)
        os.close(go_read)
        self.reached = os.read(ready_read, 1) == b"x"
        os.close(ready_read)

    def release(self) -> tuple[int, str, str]:
        os.write(self._go, b"x")
        return self.end()

    def end(self) -> tuple[int, str, str]:
        os.close(self._go)
        out, err = self.process.communicate(timeout=240)
        return self.process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_what_is_in_flight_and_prints_how_to_resume(tmp_path, number):
    held = Held(tmp_path, "--json")
    assert held.reached
    held.process.send_signal(number)
    code, out, err = held.release()
    assert code == 130, err
    data = json.loads(out)
    assert data["status"] == "interrupted"
    assert "stopping after the work in flight" in err
    assert f"resume with: kernelwright resume {data['run']}" in err
    resumed = start(tmp_path, "resume", data["run"], "--json")
    out, err = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, err
    assert "round 2/3" not in err, "the evaluation in flight was finished and is not repeated"
    assert "round 3/3" in err
    assert json.loads(out)["problems"][0]["speedup"]["eager"]["median"] == 2.0


def test_a_second_signal_ends_at_once(tmp_path):
    held = Held(tmp_path)
    held.process.send_signal(signal.SIGINT)
    line = ""
    while "stopping" not in line:
        line = held.process.stderr.readline()
        assert line, "it ended before it said that it stops"
    held.process.send_signal(signal.SIGINT)
    code, _, err = held.end()
    assert code == 130
    assert "resume with" in err
    assert "Traceback" not in err


def test_kill_9_and_resume(tmp_path):
    held = Held(tmp_path)
    held.process.kill()
    assert held.end()[0] == -signal.SIGKILL
    check = start(tmp_path, "store", "check", "--json")
    assert json.loads(check.communicate(timeout=240)[0])["ok"]
    resumed = start(tmp_path, "resume", "last")
    out, err = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, err
    assert "round 1/3" not in err
    assert "round 2/3" in err
    assert "2.00x" in out


# ------------------------------------------------------------------------------------------------- the archive of a run


def test_a_run_shows_the_elites_of_its_search(terminal):
    terminal.optimize(SOFTMAX, LAYER_NORM)
    data = terminal.json("runs", "archive", "last")
    assert data["recipe"] == "default"
    assert [view["problem"] for view in data["searches"]] == [SOFTMAX, LAYER_NORM]
    (island,) = data["searches"][0]["islands"]
    best = {row["problem"]: row["candidate"] for row in terminal.json("kernels", "best")["kernels"]}
    (elite,) = island["elites"]
    assert elite["kernel"] == best[SOFTMAX]
    assert elite["speedup"]["median"] == pytest.approx(2.0)
    assert elite["cell"].keys() == set(island["axes"])
    shown = terminal("runs", "archive", "last", "--problem", "softmax").stdout
    assert elite["kernel"][:12] in shown
    assert "2.00x [" in shown
    assert sum(arm["steps"] for arm in island["arms"]) > 2
    assert "operator" in shown
    assert "layer_norm" not in shown


def test_an_archive_that_there_is_not_is_told(terminal, tmp_path):
    terminal.optimize(SOFTMAX, "--recipe", "cudaforge")
    assert "the recipe cudaforge has no evolutionary search" in terminal("runs", "archive", "last").stdout
    assert terminal.json("runs", "archive", "last")["searches"] == []
    terminal.optimize(SOFTMAX)
    assert "leave --problem out" in terminal("runs", "archive", "last", "-p", "gelu", code=2).stderr
