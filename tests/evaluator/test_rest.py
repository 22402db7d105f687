"""Where a stopped worker stands, as the kernel shows it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelwright.evaluator.builds.referee_code import build_library
from kernelwright.evaluator.cpu.rest_watch import Watch
from kernelwright.evaluator.host import door

SPINNING = "import os\nos.write(1, b'x')\nwhile True: pass"
IN_A_CALL = "import os\nos.write(1, b'x')\nos.read(0, 1)"
OTHER_FILES = SimpleNamespace(door_files=frozenset({(0, 0)}), door_data=b"", products=set())


@pytest.fixture(params=[SPINNING, IN_A_CALL], ids=["spinning", "in a call"])
def stopped(request):
    source = f"import os; os.write(1, b'x'); {request.param}" if request.param == IN_A_CALL else None
    source = source or f"import os; os.write(1, b'x')\n{request.param}"
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.read(1) == b"x"
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    yield process.pid
    process.kill()
    process.wait()
    process.stdout.close()
    process.stdin.close()


def test_a_worker_that_stands_elsewhere_is_found_in_calls_of_the_system_too(stopped):
    assert "not at the door" in Watch(stopped, OTHER_FILES).complaint()


def complaints(stopped, change=lambda data, offset: data):
    """What is said of a worker if any one of its files is the door, ``change``d since it was handed over."""
    for place in Watch(stopped, OTHER_FILES)._places():
        data = change(Path(place.name).read_bytes(), place.offset)
        door = SimpleNamespace(door_files=frozenset({place.file}), door_data=data, products=set())
        yield Watch(stopped, door).complaint()


def test_a_worker_at_the_door_is_at_rest(stopped):
    assert "" in complaints(stopped)


def test_a_door_whose_code_is_not_what_was_handed_over_is_found(stopped):
    def change(data, offset):
        return data[: offset + 100] + bytes([data[offset + 100] ^ 1]) + data[offset + 101 :]

    said = set(complaints(stopped, change))
    assert "" not in said
    assert any("written over" in complaint for complaint in said)


def test_a_worker_that_is_gone_is_told_elsewhere():
    process = subprocess.Popen(["true"])
    process.wait()
    assert Watch(process.pid, OTHER_FILES).complaint() == ""


def test_one_that_was_killed_is_not_said_to_stand_anywhere(stopped):
    os.kill(stopped, signal.SIGKILL)
    os.waitid(os.P_PID, stopped, os.WEXITED | os.WNOWAIT)
    watch = Watch(stopped, OTHER_FILES)
    assert {watch.complaint() for _ in range(40)} == {""}


def test_a_worker_that_waits_deeper_in_its_stack_than_before_is_found(stopped):
    for place in Watch(stopped, OTHER_FILES)._places():
        door = SimpleNamespace(
            door_files=frozenset({place.file}), door_data=Path(place.name).read_bytes(), products=set()
        )
        watch = Watch(stopped, door)
        assert not watch.arrived(), "it may have only just come"
        if not watch.arrived():
            continue
        assert watch.complaint() == ""
        watch._stack -= 16
        assert "out of code of its own" in watch.complaint()
        break
    else:
        assert Path(f"/proc/{stopped}/syscall").read_text().split()[0] != "-1", "nobody at the door sleeps in a call"


def test_the_stack_is_as_deep_at_the_first_instruction_of_the_door_as_in_its_loop(tmp_path):
    library = build_library(Path(door.__file__).with_name("door.c"), tmp_path)
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", "--disassemble=kw_exchange", str(library)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    code = listing[listing.index("<kw_exchange>:") :].splitlines()[1:]
    assert any("ret" in line for line in code)
    assert [line for line in code if re.search(r"push|pop|call|leave|%[re]sp|%rbp|\bsp\b|\bblr?\b", line)] == []
