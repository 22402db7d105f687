"""Workers: cold ones and warm ones, on each rung that confines."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import time

import pytest

from kernelwright.errors import SandboxError, UsageError
from kernelwright.sandbox import (
    Exit,
    Limits,
    Mount,
    PeerClosed,
    SharedMemory,
    open_sandbox,
    recv_message,
    send_message,
)


@pytest.fixture(params=["warm", "cold"])
def start(request, sandbox):
    """Starts guests of one temperature; all are killed in the end."""
    started = []

    def start(entry, **options):
        ours, theirs = socket.socketpair()
        try:
            worker = sandbox.start_worker(
                f"sandbox_guests:{entry}", sock=theirs, warm=request.param == "warm", **options
            )
        except BaseException:
            ours.close()
            raise
        started.append((worker, ours))
        assert worker.warm == (request.param == "warm") or options["limits"].allow_exec
        return worker, ours

    yield start
    for worker, ours in started:
        worker.kill()
        ours.close()


def ask(sock, message, fds=()):
    send_message(sock, message, fds)
    return recv_message(sock, timeout_s=30.0, max_fds=0)[0]


def test_a_worker_answers_and_ends_with_its_owner(start):
    worker, sock = start("echo")
    assert ask(sock, {"a": 1}) == {"a": 1}
    assert worker.alive()
    assert os.path.exists(f"/proc/{worker.pid}")
    end = worker.kill()
    assert end == Exit(None, signal.SIGKILL, "signal")
    assert worker.kill() == end
    assert worker.wait(0) == end
    assert not worker.alive()
    with pytest.raises(PeerClosed):
        recv_message(sock, timeout_s=5.0)


def test_what_a_worker_sees_of_itself(start, sandbox):
    worker, sock = start("report", env={"GIVEN": "yes"}, cpus=[0])
    seen = recv_message(sock, timeout_s=60.0)[0]
    assert seen["affinity"] == [0]
    assert seen["fds"] == ["/dev/null", "pipe", "pipe", "socket"]
    assert seen["env"]["GIVEN"] == "yes"
    assert seen["env"]["OMP_NUM_THREADS"] == "1"
    assert not [name for name in seen["env"] if name.startswith(("PYTEST", "VIRTUAL"))]
    assert seen["torch_loaded"] == worker.warm
    assert seen["scratch"] == seen["env"]["TMPDIR"]
    if os.geteuid() == 0:
        assert seen["uid"] >= 61010
    if sandbox.name == "bwrap":
        assert seen["cwd"] == "/job"
        assert "var" not in seen["root"]
    assert worker.layers[0] == ("zygote" if worker.warm else sandbox.layers[0])
    assert "seccomp:contestant" in worker.layers


def test_no_user_id_is_taken_under_which_something_runs(start):
    """Another network namespace, as a container's, reserves ids unseen. Ending a sandbox must not end its processes."""
    worker, _ = start("echo")
    uid = os.stat(f"/proc/{worker.pid}").st_uid
    worker.kill()
    if os.geteuid() != 0:
        assert uid == os.geteuid()  # an ordinary user cannot change users
        return
    stranger = subprocess.Popen(["sleep", "60"], user=uid)
    try:
        others = [start("echo")[0] for _ in range(2)]
        assert uid not in {os.stat(f"/proc/{other.pid}").st_uid for other in others}
        for other in others:
            other.kill()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_how_workers_end(start):
    for entry, expected in {
        "finish": Exit(0, None, ""),
        "leave": Exit(7, None, "exit"),
        "stumble": Exit(1, None, "exit"),
        "crash": Exit(None, signal.SIGSEGV, "signal"),
    }.items():
        worker, _ = start(entry)
        assert worker.wait(30.0) == expected, entry
        out, err = worker.output()
        assert out == (b"done\n" if entry == "finish" else b"")
        assert (b"RuntimeError: lost" in err) == (entry == "stumble")


@pytest.mark.parametrize(
    ("entry", "limits", "reason"),
    [
        ("hang", Limits(wall_s=0.3), "timeout"),
        ("chatter", Limits(output_bytes=50_000), "output"),
        ("allocate_shared", Limits(memory_bytes=300 << 20), "oom"),
    ],
)
def test_limits_end_a_worker(start, entry, limits, reason):
    worker, sock = start(entry, limits=limits)
    end = worker.wait(60.0)
    assert end is not None
    assert end.reason == reason
    assert len(worker.output()[0]) <= limits.output_bytes
    with pytest.raises(PeerClosed):
        recv_message(sock, timeout_s=5.0)


def test_private_memory_is_limited(start, sandbox):
    worker, _ = start("allocate", limits=Limits(memory_bytes=300 << 20))
    end = worker.wait(60.0)
    assert end is not None
    if "memory:rlimit+watchdog" in sandbox.layers:
        assert end.reason in ("oom", "exit")  # the allocation itself may be refused
    else:
        assert end.reason == "oom"


def test_freezing_is_confirmed(start):
    """Two threads count; while the worker is frozen neither moves, however often one looks."""
    worker, sock = start("count")
    with SharedMemory.create(4096, "count") as memory:
        counters = memory.view.cast("Q")
        assert ask(sock, {}, [memory.fd]) == {"ready": True}
        for _ in range(5):
            worker.freeze()
            before = counters[0], counters[1]
            assert all((counters[0], counters[1]) == before for _ in range(20_000))
            worker.thaw()
            await_change(counters, before)
        worker.freeze()
        counters.release()
    assert worker.kill() == Exit(None, signal.SIGKILL, "signal")


def await_change(counters, before):
    deadline = time.monotonic() + 30.0
    while counters[0] == before[0] or counters[1] == before[1]:
        assert time.monotonic() < deadline, "the worker does not run again"


def test_a_frozen_worker_still_meets_its_ceiling(start):
    worker, _ = start("echo", limits=Limits(wall_s=0.5))
    worker.freeze()
    assert worker.wait(30.0) == Exit(None, signal.SIGKILL, "timeout")
    worker.freeze()  # what has ended, stands still
    worker.thaw()


def test_further_programs_only_where_allowed(start):
    worker, sock = start("run_program", limits=Limits(allow_exec=True))
    assert recv_message(sock, timeout_s=30.0)[0] == {"said": "ran\n"}
    assert "seccomp:contestant" not in worker.layers
    worker, _ = start("run_program")
    assert worker.wait(30.0) == Exit(1, None, "exit")
    assert b"PermissionError" in worker.output()[1]


def test_daemons_of_a_worker_die_with_it(start):
    worker, sock = start("fork_daemons", limits=Limits(allow_exec=True))
    assert recv_message(sock, timeout_s=30.0)[0] == {"ready": True}
    worker.kill()
    with pytest.raises(PeerClosed):  # each of them held the worker's end of the socket
        recv_message(sock, timeout_s=30.0)


def test_memory_of_a_worker_can_be_read_from_outside(start):
    """The referee reads outputs this way, also where it is an ordinary user."""
    worker, sock = start("echo")
    assert ask(sock, {}) == {}
    with open(f"/proc/{worker.pid}/maps") as file:
        address = next(int(line.split("-")[0], 16) for line in file if " r" in line)

    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

    buffer = ctypes.create_string_buffer(64)
    local, remote = Vector(ctypes.addressof(buffer), 64), Vector(address, 64)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.process_vm_readv(worker.pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) == 64


def test_a_mount_shows_in_a_worker(bwrap, tmp_path, pair):
    (tmp_path / "data").write_text("seen")
    tmp_path.chmod(0o755)
    for warm in (True, False):
        ours, theirs = socket.socketpair()
        with ours:
            worker = bwrap.start_worker(
                "sandbox_guests:read_data", sock=theirs, warm=warm, mounts=[Mount(str(tmp_path), "/data/here")]
            )
            assert recv_message(ours, timeout_s=30.0)[0] == {"data": "seen", "written": False}
            worker.kill()


def test_a_moved_mount_is_refused_where_it_cannot_be_shown(process, tmp_path, pair):
    ours, theirs = pair
    with pytest.raises(SandboxError, match="bwrap"):
        process.start_worker("sandbox_guests:echo", sock=theirs, mounts=[Mount(str(tmp_path), "/data")])
    assert ours.recv(1) == b""  # the worker's end is closed also on failure


@pytest.mark.parametrize("entry", ["", "module", "module:", ":function", "a b:c", "os:system('x')", "../x:y"])
def test_malformed_entries(bwrap, pair, entry):
    with pytest.raises(UsageError):
        bwrap.start_worker(entry, sock=pair[1])


def test_several_workers_at_once_have_several_users(sandbox):
    pairs = [socket.socketpair() for _ in range(3)]
    workers = [sandbox.start_worker("sandbox_guests:report", sock=theirs) for _, theirs in pairs]
    seen = [recv_message(ours, timeout_s=60.0)[0]["uid"] for ours, _ in pairs]
    if os.geteuid() == 0:
        assert len(set(seen)) == 3
    for worker, (ours, _) in zip(workers, pairs, strict=True):
        worker.kill()
        ours.close()


def test_threads_of_torch_work_in_a_warm_worker(guests):
    with open_sandbox("auto", python_paths=[guests], threads=2) as sandbox:
        assert sandbox.call("sandbox_guests:compute", {}) == {"sum": 256.0**3, "threads": 2}


OWN = "kernelwright.inline"  # a module of ours, which a zygote has not imported


@pytest.fixture
def start_warm(sandbox):
    """Starts warm workers, apart from others or not; all are killed in the end."""
    started = []

    def start(entry="sandbox_guests:report", **options):
        ours, theirs = socket.socketpair()
        worker = sandbox.start_worker(entry, sock=theirs, **options)
        started.append((worker, ours))
        return worker, ours

    yield start
    for worker, ours in started:
        worker.kill()
        ours.close()


def test_workers_apart_are_as_confined_as_others(start_warm):
    (worker, sock), (another, other) = (start_warm(cpus=[0], apart=apart) for apart in (True, False))
    apart, usual = (recv_message(channel, timeout_s=60.0)[0] for channel in (sock, other))
    assert worker.warm
    assert worker.layers == another.layers
    for name in ("fds", "root", "home", "affinity"):
        assert apart[name] == usual[name], name


def test_what_is_imported_apart_is_nowhere_else(start_warm):
    start_warm(f"{OWN}:no_such_function", apart=True)  # imports the module, whatever becomes of it
    _, sock = start_warm()
    assert OWN not in recv_message(sock, timeout_s=60.0)[0]["ours"]


def test_workers_apart_start_again_when_what_forks_them_has_died(start_warm):
    worker, sock = start_warm("sandbox_guests:echo", apart=True)
    assert ask(sock, {"a": 1}) == {"a": 1}
    with open(f"/proc/{worker.pid}/status") as status:
        parent = next(int(line.split()[1]) for line in status if line.startswith("PPid:"))
    watched = os.pidfd_open(parent)
    os.kill(parent, signal.SIGKILL)
    assert select.select([watched], [], [], 30.0)[0]  # it has ended
    os.close(watched)
    again, sock = start_warm("sandbox_guests:echo", apart=True)
    assert ask(sock, {"a": 2}) == {"a": 2}
    for ended in (worker, again):
        assert ended.kill() == Exit(None, signal.SIGKILL, "signal")
