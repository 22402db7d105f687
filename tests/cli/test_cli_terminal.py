"""What a person sees on a terminal: colours and a live line there, plain text everywhere else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).parent
SOFTMAX = "kernelwright/level1/softmax"


class Seen(NamedTuple):
    stdout: str
    terminal: str
    code: int


def on_a_terminal(folder: Path, *words: str, stdout_too: bool = False, columns: int = 130, **env: str) -> Seen:
    """Run the command with standard error (and output) on a pseudo-terminal."""
    environment = {
        **{name: value for name, value in os.environ.items() if name != "NO_COLOR"},
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE.parent / "campaign")]),
        "KERNELWRIGHT_STORE": str(folder / "store.db"),
        "KERNELWRIGHT_CACHE_DIR": str(folder / "cache"),
        "KERNELWRIGHT_CODER": "scripted",
        "KERNELWRIGHT_JUDGE": "scripted",
        "TERM": "xterm-256color",
        "COLUMNS": str(columns),
        **env,
    }
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, str(HERE / "cli_fake_main.py"), *words],
        stdout=theirs if stdout_too else subprocess.PIPE,
        stderr=theirs,
        stdin=subprocess.DEVNULL,
        env=environment,
        cwd=folder,
    ) as process:
        os.close(theirs)
        terminal = read_all(ours)
        out = b"" if process.stdout is None else process.stdout.read()
    os.close(ours)
    return Seen(out.decode(), terminal.decode(), process.returncode)


def read_all(fd: int) -> bytes:
    """Everything until the other side closes, which Linux reports as an input/output error."""
    found = b""
    while True:
        try:
            data = os.read(fd, 65536)
        except OSError:
            return found
        if not data:
            return found
        found += data


def test_a_terminal_shows_a_live_line_and_each_finished_problem(tmp_path):
    seen = on_a_terminal(tmp_path, "optimize", SOFTMAX, "--rounds", "3", "--json")
    assert seen.code == 0
    assert "\x1b[" in seen.terminal
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.terminal).replace("\r", "\n").splitlines()
    lines = [line for line in lines if line]
    row = lines.index(f"✓ {SOFTMAX}: faster than eager and compile")
    assert lines[row + 1].startswith("  2.00x eager [1.96, 2.04], 1.20x compile [1.18, 1.22], kernel ")
    assert "round 2/3" not in seen.stdout
    assert len(seen.stdout.splitlines()) == 1
    assert json.loads(seen.stdout)["status"] == "finished"


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_color_and_dumb_terminals_get_plain_lines(tmp_path, env):
    seen = on_a_terminal(tmp_path, "optimize", SOFTMAX, "--rounds", "3", stdout_too=True, **env)
    assert seen.code == 0
    assert "round 2/3: PASSED" in seen.terminal
    assert "\x1b[3" not in seen.terminal
    assert "level1/softmax" in seen.terminal


def test_a_narrow_terminal_gets_two_lines_a_row(tmp_path):
    on_a_terminal(tmp_path, "optimize", SOFTMAX, "--rounds", "3")
    seen = on_a_terminal(tmp_path, "runs", "show", "last", stdout_too=True, columns=80, NO_COLOR="1")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", seen.terminal).splitlines()
    assert max(map(len, lines)) <= 80
    row = next(i for i, line in enumerate(lines) if line.strip().startswith("softmax"))
    assert "2.00x" in lines[row]
    assert "[1.96, 2.04]" in lines[row + 1]
    wide = on_a_terminal(tmp_path, "runs", "show", "last", stdout_too=True, columns=130, NO_COLOR="1").terminal
    assert "2.00x [1.96, 2.04]" in wide
