"""The other commands, and what holds for all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kernelwright.evaluator
from kernelwright.campaign import evaluate
from kernelwright.errors import KernelwrightError, MissingToolError
from kernelwright.records import Status
from kernelwright.store import Store

SOFTMAX = "kernelwright/level1/softmax"
ROOT = Path(__file__).parents[2]
CANDIDATE = "v1\n# a candidate of the user\n"


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False, timeout=60
    )


def test_help_and_completion_load_nothing_heavy():
    code = (
        "import sys\n"
        "from kernelwright.cli import cli\n"
        "try:\n"
        "    cli.main(['--help'])\n"
        "except SystemExit as leave:\n"
        "    print(leave.code)\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'rich', 'sqlite_utils', 'openai'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = python(code)
    assert done.stdout.splitlines()[-2:] == ["0", "[]"], done.stderr
    assert "optimize" in done.stdout


@pytest.mark.parametrize(
    "words",
    [["problems", "list", "--json"], ["config", "show", "--json"], ["optimize", SOFTMAX, "--dry-run", "--json"]],
)
def test_the_trusted_process_never_imports_torch(words, tmp_path):
    code = (
        "import sys\n"
        "from kernelwright.cli import cli\n"
        "try:\n"
        f"    cli.main({words!r})\n"
        "except SystemExit as leave:\n"
        "    assert not leave.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = python(code, KERNELWRIGHT_STORE=str(tmp_path / "s.db"))
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)


COMMANDS = [
    (),
    ("config", "show"),
    ("doctor",),
    ("evaluate",),
    ("kernels", "best"),
    ("kernels", "diff"),
    ("kernels", "export"),
    ("kernels", "show"),
    ("kernels", "verify"),
    ("mcp",),
    ("optimize",),
    ("problems", "capture"),
    ("problems", "lint"),
    ("problems", "list"),
    ("problems", "show"),
    ("resume",),
    ("runs", "cancel"),
    ("runs", "list"),
    ("runs", "show"),
    ("store", "backup"),
    ("store", "check"),
    ("version",),
]


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_has_help_and_json(terminal, words):
    text = terminal(*words, "--help").stdout
    assert "Usage: kernelwright" in text
    assert not words or "--json" in text


def test_mcp_keeps_standard_output_for_its_protocol(terminal):
    answer = terminal.json("mcp", code=2)
    assert "standard output" in answer["error"]["message"]


def test_an_unknown_command_names_those_near(terminal):
    assert "Did you mean optimize?" in terminal("optmize", code=2).stderr
    assert terminal.json("optmize", code=2)["error"]["exit_code"] == 2


def test_version(terminal):
    from kernelwright import __version__

    assert terminal.json("version")["kernelwright"] == __version__
    assert __version__ in terminal("--version").stdout


def test_config_show_names_each_origin(terminal, tmp_path):
    (tmp_path / "kernelwright.toml").write_text("rounds = 4\nthreads = 2\n")
    env = {"KERNELWRIGHT_THREADS": "3"}
    data = json.loads(terminal("config", "show", "--set", "recipe.samples=2", "--json", env=env).stdout)
    assert data["rounds"] == {"value": 4, "origin": f"file {tmp_path / 'kernelwright.toml'}"}
    assert data["threads"] == {"value": 3, "origin": "env KERNELWRIGHT_THREADS"}
    assert data["recipe.samples"] == {"value": 2, "origin": "flag --set"}
    assert data["measurement"]["origin"] == "default"
    assert "KERNELWRIGHT_THREADS" in terminal("config", "show", env=env).stdout


def test_problems_list_and_show(terminal):
    data = terminal.json("problems", "list", "--level", 1)["problems"]
    assert SOFTMAX in {problem["id"] for problem in data}
    assert SOFTMAX in terminal("problems", "list").stdout
    shown = terminal.json("problems", "show", "softmax")
    assert "class Model" in shown["source"]
    text = terminal("problems", "show", "softmax").stdout
    assert "class Model" in text
    assert "cpu variants:" in text
    assert "did you mean" in terminal("problems", "show", "softmx", code=2).stderr


def test_problems_lint_without_running(terminal, problem_file):
    problem_file.write_text(problem_file.read_text().replace("x + 1", "x + torch.randn(N)"))
    data = terminal.json("problems", "lint", problem_file, "--static", code=1)
    assert not data["ok"]
    assert any(finding["line"] for finding in data["findings"])
    assert "no weakness" in terminal("problems", "lint", "softmax", "--static").stdout


def test_capture_does_not_overwrite(terminal, problem_file):
    result = terminal("problems", "capture", "package:factory", "-o", problem_file, code=2)
    assert "exists" in result.stderr


@pytest.fixture
def candidate(tmp_path):
    path = tmp_path / "candidate.py"
    path.write_text(CANDIDATE)
    return path


def test_evaluate_prints_one_verdict(terminal, candidate):
    result = terminal("evaluate", candidate, "--problem", SOFTMAX)
    assert result.stdout.startswith("PASSED")
    assert "vs eager: 2.00x [1.96, 2.04]" in result.stdout
    assert "bubblewrap" in result.stdout
    assert "build" in result.stderr
    verdict = terminal.json("evaluate", candidate, "--problem", SOFTMAX)
    assert (verdict["status"], verdict["stage"], verdict["problem"]) == ("PASSED", "timed", SOFTMAX)
    assert verdict["sandbox"] == ["bubblewrap", "namespaces:user,pid"]
    assert terminal.json("evaluate", candidate, "--problem", SOFTMAX, "--confirm")["stage"] == "confirmed"
    assert terminal.json("evaluate", candidate, "--problem", SOFTMAX, "--no-time")["timing"] is None


def test_evaluate_of_a_failure_is_exit_code_1(terminal, candidate):
    terminal.referee.statuses = {"v1": Status.TIMEOUT}
    assert terminal.json("evaluate", candidate, "-p", SOFTMAX, code=1)["status"] == "TIMEOUT"
    assert "reason: it is wrong" in terminal("evaluate", candidate, "-p", SOFTMAX, code=1).stdout


def test_evaluate_bad_requests(terminal, candidate, tmp_path):
    assert "no candidate file" in terminal("evaluate", tmp_path / "none.py", "-p", SOFTMAX, code=2).stderr
    assert "did you mean" in terminal("evaluate", candidate, "-p", "softmx", code=2).stderr
    assert "--knob wants" in terminal("evaluate", candidate, "-p", SOFTMAX, "--knob", "BLOCK", code=2).stderr
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    assert "cannot read" in terminal("evaluate", tmp_path / "binary.py", "-p", SOFTMAX, code=2).stderr


def test_evaluate_passes_knobs(terminal, candidate):
    words = ("evaluate", candidate, "-p", SOFTMAX, "--knob", "BLOCK=64", "--knob", "FAST=true", "--knob", "EPS=1e-3")
    sha = terminal.json(*words)["candidate"]
    shown = terminal.json("kernels", "show", sha[:12])["candidate"]
    assert shown["knobs"] == {"BLOCK": 64, "FAST": True, "EPS": 0.001}
    assert (shown["author"], shown["operator"]) == ("user", "given")


def test_evaluate_in_python_takes_text_and_paths(terminal, candidate):
    by_path = evaluate(candidate, SOFTMAX)
    by_text = evaluate(CANDIDATE, SOFTMAX)
    assert by_path.verdict.candidate == by_text.verdict.candidate
    assert not terminal.store.exists(), "without a store nothing is kept"


def test_a_missing_tool_is_exit_code_3_with_a_hint(terminal, candidate, monkeypatch):
    def refuse(settings):
        raise MissingToolError("bubblewrap is missing", hint="apt install bubblewrap, or choose --sandbox process")

    monkeypatch.setitem(vars(kernelwright.evaluator), "Referee", refuse)
    result = terminal("evaluate", candidate, "-p", SOFTMAX, code=3)
    assert result.stderr.splitlines()[-2:] == [
        "error: bubblewrap is missing",
        "hint: apt install bubblewrap, or choose --sandbox process",
    ]
    assert "Traceback" in terminal("evaluate", candidate, "-p", SOFTMAX, code=3, env={"KERNELWRIGHT_DEBUG": "1"}).stderr


def test_a_bug_of_ours_shows_its_traceback(terminal, candidate, monkeypatch):
    monkeypatch.setitem(vars(kernelwright.evaluator), "Referee", lambda settings: 1 / 0)
    result = terminal("evaluate", candidate, "-p", SOFTMAX, code=1)
    assert "ZeroDivisionError" in result.stderr
    assert "bug of kernelwright" in result.stderr


def test_kernels_of_an_empty_store(terminal):
    assert "no kernel" in terminal("kernels", "best").stdout
    assert "no kernel" in terminal("kernels", "show", "abcdef", code=2).stderr
    assert "hex digits" in terminal("kernels", "show", "xyz", code=2).stderr
    assert "no runs" in terminal("runs", "list").stdout


def test_kernels_best_show_diff(terminal):
    terminal.optimize(SOFTMAX)
    row = terminal.json("kernels", "best", SOFTMAX)["kernels"][0]
    assert row["confirmed"]
    assert row["speedup"]["median"] == 2.0
    assert row["candidate"][:12] in terminal("kernels", "best", "softmax").stdout
    shown = terminal("kernels", "show", row["candidate"][:8]).stdout
    assert "v1" in shown
    assert "PASSED" in shown
    assert "parent" in shown
    diff = terminal("kernels", "diff", row["candidate"]).stdout
    assert "-v0" in diff
    assert "+v1" in diff
    parent = terminal.json("kernels", "show", row["candidate"])["candidate"]["parents"][0]
    assert "-class Model(nn.Module):" in terminal("kernels", "diff", parent).stdout
    assert terminal.json("kernels", "diff", parent, row["candidate"])["from"] == row["candidate"][:12]


def test_kernels_export_writes_only_what_passed(terminal, tmp_path, monkeypatch):
    pytest.importorskip("kernelwright.export")
    monkeypatch.setattr(
        "kernelwright.export.export_module", lambda problem, candidate, **more: f"# {candidate.sha256}\n"
    )
    terminal.referee.statuses = {"v0": Status.TIMEOUT}
    terminal.optimize(SOFTMAX)
    row = terminal.json("kernels", "best")["kernels"][0]
    target = tmp_path / "out" / "kernel.py"
    assert str(target) in terminal("kernels", "export", row["candidate"][:12], "-o", target).stdout
    assert target.read_text() == f"# {row['candidate']}\n"
    assert "exists" in terminal("kernels", "export", row["candidate"], "-o", target, code=2).stderr
    terminal("kernels", "export", row["candidate"], "-o", target, "--force")
    with Store.open(terminal.store) as store:
        failed = store.evaluations(passed=False)[0].candidate.sha256
    assert "never passed" in terminal("kernels", "export", failed, "-o", tmp_path / "no.py", code=2).stderr
    assert not (tmp_path / "no.py").exists()


def test_kernels_verify_judges_again(terminal):
    terminal.optimize(SOFTMAX)
    sha = terminal.json("kernels", "best")["kernels"][0]["candidate"]
    before = len(terminal.referee.judged)
    assert terminal.json("kernels", "verify", sha[:12])["stage"] == "confirmed"
    assert terminal.referee.judged[before:] == [("softmax", "v1", True)]
    terminal.referee.statuses = {"v1 confirmed": Status.QUARANTINED}
    assert "QUARANTINED" in terminal("kernels", "verify", sha, code=1).stdout


def test_store_check_and_backup(terminal, tmp_path):
    terminal.optimize(SOFTMAX)
    assert terminal.json("store", "check")["ok"]
    assert "sound" in terminal("store", "check").stdout
    copy = tmp_path / "copy.db"
    terminal("store", "backup", copy)
    assert terminal.json("kernels", "best", "--store", copy) == terminal.json("kernels", "best")


def test_doctor_without_a_sandbox_is_exit_code_3(terminal, monkeypatch):
    def refuse(kind, **more):
        raise MissingToolError("bubblewrap is missing", hint="apt install bubblewrap")

    monkeypatch.setattr("kernelwright.sandbox.open_sandbox", refuse)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    data = terminal.json("doctor", code=3)
    states = {check["name"]: check["state"] for check in data["checks"]}
    assert not data["ok"]
    assert states["sandbox auto"] == "missing"
    assert states["g++"] == "ok"
    assert states["OPENAI_API_KEY"] == "ok"
    text = terminal("doctor", code=3).stdout
    assert "apt install bubblewrap" in text
    assert "not ready: sandbox auto" in text
    assert "sk-very-secret" not in text


def test_every_error_of_ours_has_an_exit_code_of_the_contract():
    def all_of(cls):
        return {cls}.union(*(all_of(sub) for sub in cls.__subclasses__()))

    assert {error.exit_code for error in all_of(KernelwrightError)} <= {1, 2, 3, 4, 130}
