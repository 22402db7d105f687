"""Nothing stays behind: no descriptor, process, group, or directory; not even where the owner is killed."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kernelwright.errors import SandboxError
from kernelwright.sandbox import Limits, WorkerFailed, _spawn, open_sandbox, recv_message, send_message

OWNER = """
import socket, sys
from kernelwright.sandbox import open_sandbox, recv_message, send_message
sandbox = open_sandbox(sys.argv[1], python_paths=[sys.argv[2]])
pids = []
for warm in (True, False):
    ours, theirs = socket.socketpair()
    worker = sandbox.start_worker("sandbox_guests:hang", sock=theirs, warm=warm)
    pids.append(worker.pid)
print(*pids, flush=True)
if sys.argv[3] == "wait":
    sys.stdin.read()
"""


def groups(owner):
    """Control groups that a process made."""
    found = []
    for root in {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if " cgroup" in line}:
        for directory, names, _ in os.walk(root):
            found += [f"{directory}/{name}" for name in names if name.startswith(f"kernelwright-{owner}-")]
    return found


def children():
    """Processes below this one that run, without zombies."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX":
                found.setdefault(int(fields[1]), []).append(int(folder.name))
    below, layer = set(), [os.getpid()]
    while layer:
        layer = [child for parent in layer for child in found.get(parent, ())]
        below.update(layer)
    return below


def directories():
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("kernelwright-sandbox-")}


@pytest.fixture
def private_tmp(monkeypatch):
    """Other test runs on this machine make directories too."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        monkeypatch.setattr("tempfile.tempdir", directory)
        yield directory


def use(sandbox):
    """Every way to end, once."""
    ours, theirs = socket.socketpair()
    with ours:
        worker = sandbox.start_worker("sandbox_guests:echo", sock=theirs)
        send_message(ours, {})
        recv_message(ours, timeout_s=30.0)
        worker.freeze()
        worker.thaw()
        worker.kill()
    sandbox.run(["sh", "-c", "mkdir -p d/e; touch d/e/f; chmod 000 d/e d; ln -s / up"], files={"a/b": b""})
    sandbox.run(["yes"], limits=Limits(output_bytes=1000))
    with pytest.raises(WorkerFailed):
        sandbox.call("sandbox_guests:refuse", {})
    with pytest.raises(SandboxError):
        sandbox.run(["true"], limits=Limits(nofile=-5))


def test_no_descriptor_group_or_directory_is_left(sandbox, open_fds, private_tmp):
    standing = groups(os.getpid())  # of a sandbox that other tests of this process keep open
    use(sandbox)
    gc.collect()
    before = open_fds()
    for _ in range(3):
        use(sandbox)
    gc.collect()
    assert open_fds() == before
    assert groups(os.getpid()) == standing
    assert directories() == set()


def test_closing_ends_workers_and_zygote(guests, open_fds, private_tmp):
    gc.collect()
    before, standing = open_fds(), groups(os.getpid())
    sandbox = open_sandbox("auto", python_paths=[guests])
    ours, theirs = socket.socketpair()
    worker = sandbox.start_worker("sandbox_guests:hang", sock=theirs)
    sandbox.close()
    sandbox.close()
    assert worker.wait(0) is not None
    assert ours.recv(1) == b""
    ours.close()
    with pytest.raises(SandboxError, match="closed"):
        sandbox.run(["true"])
    assert open_fds() == before
    assert groups(os.getpid()) == standing


@pytest.mark.parametrize("kind", ["bwrap", "process"])
def test_workers_die_with_an_owner_that_is_killed(request, kind, guests, private_tmp):
    request.getfixturevalue(kind)
    with start_owner(kind, guests, "wait", private_tmp) as owner:
        pidfds = [os.pidfd_open(int(pid)) for pid in owner.stdout.readline().split()]
        assert len(pidfds) == 2
        owner.send_signal(signal.SIGKILL)
    for fd in pidfds:
        assert select.select([fd], [], [], 30.0)[0], "a worker outlived its owner"
        os.close(fd)
    open_sandbox(kind).close()  # the next one removes what a dead one could not
    assert groups(owner.pid) == []


@pytest.mark.parametrize("kind", ["bwrap", "process"])
def test_an_owner_that_forgets_to_close_leaves_nothing(request, kind, guests, private_tmp):
    request.getfixturevalue(kind)
    with start_owner(kind, guests, "leave", private_tmp) as owner:
        output, errors = owner.communicate(timeout=60)
    assert owner.returncode == 0, errors
    assert not [pid for pid in output.split() if is_guest(int(pid))]
    assert groups(owner.pid) == []
    assert directories() == set()


def is_guest(pid):
    try:
        return Path(f"/proc/{pid}/status").read_text().split("State:\t")[1][0] != "Z"
    except OSError:
        return False


def start_owner(kind, guests, ending, directory):
    return subprocess.Popen(
        [sys.executable, "-c", OWNER, kind, guests, ending],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": directory, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_directories_of_a_dead_owner_are_removed_and_of_a_live_one_kept(guests, process, private_tmp):
    ours, theirs = socket.socketpair()
    with ours:
        worker = process.start_worker("sandbox_guests:echo", sock=theirs)
        (alive,) = directories()
        dead = Path(private_tmp, "kernelwright-sandbox-dead")
        (dead / "job").mkdir(parents=True)
        fresh = Path(private_tmp, "kernelwright-sandbox-fresh")  # perhaps not locked yet
        fresh.mkdir()
        for path in (dead, Path(private_tmp, alive)):
            os.utime(path, (0, 0))
        open_sandbox("process").close()
        assert directories() == {alive, fresh.name}
        worker.kill()
    assert directories() == {fresh.name}


def test_a_worker_outlives_the_thread_that_started_it(sandbox):
    import threading

    ours, theirs = socket.socketpair()
    started = []
    thread = threading.Thread(
        target=lambda: started.append(sandbox.start_worker("sandbox_guests:echo", sock=theirs, warm=False))
    )
    thread.start()
    thread.join()
    send_message(ours, {"still": "there"})
    assert recv_message(ours, timeout_s=30.0)[0] == {"still": "there"}
    started[0].kill()
    ours.close()


@pytest.mark.parametrize("program", ["/bin/sleep", sys.executable])
def test_an_interrupt_just_after_a_start_leaves_no_process(guests, monkeypatch, program):
    """Of the self-test's canary, and of the zygote: the interrupt comes before the caller holds the process."""
    start, before = _spawn.spawn, children()

    def interrupted(command, *answer):
        process = start(command, *answer)
        if command.argv[0] == program:
            raise KeyboardInterrupt
        return process

    monkeypatch.setattr(_spawn, "spawn", interrupted)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(KeyboardInterrupt), open_sandbox("bwrap", python_paths=[guests]) as sandbox:
        sandbox.start_worker("sandbox_guests:hang", sock=theirs)
    assert children() <= before
