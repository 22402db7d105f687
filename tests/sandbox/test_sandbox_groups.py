"""Control groups: each version alone, and none; hosts have one, the other, both, or neither."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from kernelwright.sandbox import Limits, SharedMemory, _cgroups, open_sandbox, recv_message, send_message


@pytest.fixture(params=["v1", "v2", "none"])
def version(request, bwrap, monkeypatch):
    """Hides the hierarchies of the other versions."""
    if os.geteuid() != 0:
        pytest.skip("an ordinary user has no groups here")
    wanted = {"v1": lambda mount: mount.controllers, "v2": lambda mount: not mount.controllers, "none": lambda _: False}
    mounts = [mount for mount in _cgroups._mounts() if wanted[request.param](mount)]
    if request.param != "none" and not mounts:
        pytest.skip(f"this host has no {request.param} hierarchy")
    monkeypatch.setattr(_cgroups, "_mounts", lambda: mounts)
    return request.param


def test_freezing_killing_and_memory(version, guests):
    with open_sandbox("bwrap", python_paths=[guests]) as sandbox:
        assert ("no-cgroup" in sandbox.layers) == (version == "none")
        ours, theirs = socket.socketpair()
        worker = sandbox.start_worker("sandbox_guests:count", sock=theirs, warm=False)
        with ours, SharedMemory.create(4096, "count") as memory:
            send_message(ours, {}, [memory.fd])
            recv_message(ours, timeout_s=30.0)
            counters = memory.view.cast("Q")
            worker.freeze()
            before = counters[0], counters[1]
            assert all((counters[0], counters[1]) == before for _ in range(20_000))
            worker.thaw()
            while counters[0] == before[0]:
                assert worker.alive()
            worker.freeze()
            counters.release()
            assert worker.kill().reason == "signal"
        source = "import mmap\nm = []\nwhile True:\n  m.append(mmap.mmap(-1, 32 << 20)); m[-1].write(b'x' * (32 << 20))"
        done = sandbox.run(["/usr/bin/env", "python3", "-c", source], limits=Limits(memory_bytes=200 << 20))
        assert done.reason == "oom"
        bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
        done = sandbox.run(["/usr/bin/env", "python3", "-c", bomb], limits=Limits(wall_s=0.5, pids=30))
        assert done.reason == "timeout"


def test_groups_of_a_dead_owner_are_removed(bwrap):
    parents = {os.path.dirname(path) for path in _group_of(bwrap)}
    if not parents:
        pytest.skip("no control groups here")
    stale = [f"{parent}/kernelwright-{1 << 22}-1-1" for parent in parents]
    foreign = [f"{parent}/kernelwright-{os.getpid()}-0-other" for parent in parents]  # a process id used again
    for path in [*stale, *foreign]:
        os.mkdir(path)
    with open_sandbox("bwrap"):
        assert not [path for path in [*stale, *foreign] if os.path.exists(path)]


def _group_of(sandbox):
    """The groups of a program inside, as the host sees them."""
    ours, theirs = socket.socketpair()
    with ours:
        worker = sandbox.start_worker("sandbox_guests:echo", sock=theirs)
        send_message(ours, {})
        recv_message(ours, timeout_s=30.0)
        found = []
        for line in Path(f"/proc/{worker.pid}/cgroup").read_text().splitlines():
            path = line.split(":", 2)[2]
            if "/kernelwright-" in path:
                found += [root + path for root in _roots() if os.path.isdir(root + path)]
        worker.kill()
    return found


def _roots():
    return {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if " cgroup" in line}
