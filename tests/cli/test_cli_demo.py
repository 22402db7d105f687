"""``make demo``: what it types exists, it tells the first confirmed speedup, and Ctrl-C ends all that it started."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import demo  # noqa: E402

PLANS = pytest.mark.parametrize("plan", [demo.SHORT, demo.FULL], ids=["demo", "demo-full"])

# A suite started by nohup, or in the background of a script, hands down signals that are ignored.
RUNNER = """
import signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
import demo
sys.exit(demo.run_command(sys.argv[2:], patience_s=float(sys.argv[1])))
"""
ORDERLY = """
import signal
try:
    print("ready", flush=True)
    while True:
        signal.pause()
except KeyboardInterrupt:
    print("put away", flush=True)
"""
# It has a child that holds the same output, and neither of them ends for being asked to.
STUBBORN = """
import os, signal
signal.signal(signal.SIGINT, lambda *_: print("asked", flush=True))
if os.fork():
    print("ready", flush=True)
while True:
    signal.pause()
"""


@contextmanager
def running(program: str, patience_s: float) -> Iterator[subprocess.Popen[str]]:
    """The demo's runner with a stand-in for ``kernelwright``, which is ready."""
    command = [sys.executable, "-c", RUNNER, str(patience_s), sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=SCRIPTS, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_what_runs_and_waits_until_it_has_put_away_its_work(number):
    with running(ORDERLY, patience_s=3600) as process:
        process.send_signal(number)
        # All of its output, which ends when nobody is left that holds it.
        assert process.communicate() == ("put away\n", None)
        assert process.returncode == 128 + number


def test_what_does_not_end_is_asked_again_and_then_killed_with_its_children():
    with running(STUBBORN, patience_s=0.01) as process:
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate()
    assert said.replace("asked\n", "") == ""
    assert process.returncode == 128 + signal.SIGTERM


def test_who_presses_ctrl_c_three_times_need_not_wait():
    with running(STUBBORN, patience_s=3600) as process:
        assert process.stdout is not None
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 128 + signal.SIGINT


STANDING_IN = """
import signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
sys.path.insert(0, {scripts!r})
import demo
sys.exit(demo.run_command([sys.executable, "-c", {program!r}], patience_s=3600))
"""
SETTING_UP = """
sleep 3600 &
echo ready
wait
"""
BY_MAKE = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execvp("make", ["make", "--silent", *sys.argv[1:]])
"""


@pytest.fixture
def made(tmp_path):
    """The project's Makefile over a set-up and a demo that stand in for the real ones."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    python = tmp_path / "venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    shutil.copy(SCRIPTS.parent / "Makefile", tmp_path)
    shutil.copy(SCRIPTS / "together.sh", tmp_path / "scripts")
    (tmp_path / "scripts" / "setup.sh").write_text("")
    standing_in = STANDING_IN.format(scripts=str(SCRIPTS), program=ORDERLY)
    (tmp_path / "scripts" / "demo.py").write_text(standing_in)
    return tmp_path


@contextmanager
def making(folder: Path, target: str) -> Iterator[subprocess.Popen[str]]:
    """The make of a target in its own session, which has come as far as the stand-in."""
    command = [sys.executable, "-c", BY_MAKE, target, "VENV=venv"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, cwd=folder, start_new_session=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_whoever_ends_make_alone_ends_the_demo_with_it(made, number):
    with making(made, "demo") as process:
        process.send_signal(number)
        # All of its output, which ends when nobody is left that holds it.
        assert process.communicate()[0] == "put away\n"
    assert process.returncode != 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_ends_the_terminal_s_group_ends_the_demo(made, number):
    with making(made, "demo") as process:
        os.killpg(process.pid, number)
        assert process.communicate()[0] == "put away\n"


def test_whoever_ends_make_while_it_sets_up_ends_what_is_installed(made):
    (made / "scripts" / "setup.sh").write_text(SETTING_UP)
    for tell in (os.kill, os.killpg):
        with making(made, "demo") as process:
            tell(process.pid, signal.SIGTERM)
            assert process.communicate()[0] == ""
        assert process.returncode != 0
    with making(made, "setup") as process:
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate()[0] == ""


@pytest.mark.parametrize("code", [0, 3])
def test_a_set_up_keeps_its_exit_code(made, code):
    (made / "scripts" / "setup.sh").write_text(f"exit {code}")
    done = subprocess.run(["sh", "scripts/together.sh", "sh", "scripts/setup.sh"], cwd=made, check=False)
    assert done.returncode == code


@pytest.mark.parametrize(("program", "code"), [("pass", 0), ("import sys; sys.exit(4)", 4)])
def test_a_command_that_ends_by_itself_keeps_its_exit_code(program, code):
    assert demo.run_command([sys.executable, "-c", program]) == code


@PLANS
def test_the_demo_types_commands_that_can_be_had(terminal, plan):
    *searches, check = demo.commands(plan)
    problems = [terminal.json(*words, "--dry-run")["problems"] for words in searches]
    assert [len(found) for found in problems] == [len(plan.problems), len(plan.replayed)]
    assert check[0] == "evaluate"
    assert terminal.json("problems", "show", check[check.index("--problem") + 1])
    assert Path(check[1]).exists(), shlex.join(check)
    assert not demo.STORE.exists()


def test_the_first_speedup_is_the_first_that_was_confirmed_since_the_demo_began(terminal):
    store = ("--store", demo.STORE)
    terminal.referee.confirmed_speedups = dict.fromkeys(("v0", "v1", "v2"), 0.9)  # what the search took for fast
    terminal.optimize("level1/gelu", *store)
    began = datetime.now(UTC)
    assert demo.first_win(began) == ""
    terminal.optimize("level1/softmax", *store)
    assert demo.first_win(began) == ""
    terminal.referee.confirmed_speedups = {}
    terminal.optimize("level1/layer_norm", "level1/rms_norm", *store)
    said = r"first confirmed speedup after \d+ s: kernelwright/level1/layer_norm, 2\.00x eager \[1\.96, 2\.04\]"
    assert re.fullmatch(said, demo.first_win(began))
    assert demo.first_win(datetime.now(UTC)) == ""
