"""The same as an ordinary user: bubblewrap's user namespace instead of user ids.

Where the suite runs as root, it runs the body as another user under the system's Python, because an interpreter below
/root could not be entered. That Python needs nothing installed: this room depends on the standard library alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import kernelwright

SYSTEM_PYTHON = "/usr/bin/python3"
BODY = """
import ctypes, json, os, socket, sys
sys.path[:0] = sys.argv[2:]
from kernelwright.sandbox import Limits, open_sandbox, recv_message, self_test, send_message

with open_sandbox(sys.argv[1], python_paths=[sys.argv[3]]) as sandbox:
    result = {"layers": sandbox.layers, "holes": [probe for probe in self_test(sandbox) if not probe.ok], "workers": []}
    python = [sys.executable, "-I", "-S", "-c"]
    done = sandbox.run(["sh", "-c", "cat /in/x"], files={"x": b"hello"})
    result["said"] = done.stdout.decode()
    mapped = "import mmap\\nm = []\\nwhile True:\\n  m.append(mmap.mmap(-1, 32 << 20)); m[-1].write(b'x' * (32 << 20))"
    files = "import os\\nwhile True: os.posix_fallocate(os.memfd_create('hoard'), 0, 32 << 20)"
    tables = "import mmap\\nm = mmap.mmap(-1, 1 << 39, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)\\n"
    tables += "m.madvise(mmap.MADV_NOHUGEPAGE)\\nfor at in range(0, len(m), 2 << 20): m[at]"
    limits = Limits(memory_bytes=200 << 20)
    result["oom"] = [sandbox.run([*python, source], limits=limits).reason for source in (mapped, files, tables)]
    bomb = "import os\\nwhile True:\\n  try: os.fork()\\n  except OSError: pass"
    result["bomb"] = sandbox.run([*python, bomb], limits=Limits(wall_s=0.5, pids=20)).reason
    for warm in (True, False):
        ours, theirs = socket.socketpair()
        worker = sandbox.start_worker("sandbox_guests:echo", sock=theirs, warm=warm)
        send_message(ours, {"a": 1})
        answer = recv_message(ours, timeout_s=30.0)[0]
        worker.freeze()
        states = {open(f"/proc/{worker.pid}/task/{t}/stat").read().rpartition(")")[2].split()[0]
                  for t in os.listdir(f"/proc/{worker.pid}/task")}
        worker.thaw()
        address = next(int(l.split("-")[0], 16) for l in open(f"/proc/{worker.pid}/maps") if " r" in l)
        class Vector(ctypes.Structure):
            _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
        buffer = ctypes.create_string_buffer(64)
        libc = ctypes.CDLL(None, use_errno=True)
        vectors = Vector(ctypes.addressof(buffer), 64), Vector(address, 64)
        size = libc.process_vm_readv(worker.pid, ctypes.byref(vectors[0]), 1, ctypes.byref(vectors[1]), 1, 0)
        end = worker.kill()
        ours.close()
        result["workers"].append([answer, worker.warm, sorted(states), size, end.reason])
    result["forbidden"] = sandbox.call("sandbox_guests:forbidden", {})
print(json.dumps(result))
"""


@pytest.mark.parametrize("kind", ["bwrap", "process"])
def test_as_an_ordinary_user(kind, guests):
    package = Path(kernelwright.__file__).parent.parent
    command = [SYSTEM_PYTHON, "-B", "-c", BODY, kind, str(package), guests]
    if kind == "bwrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    if not Path(SYSTEM_PYTHON).exists():
        pytest.skip("needs the system's Python")
    if os.geteuid() == 0:
        reachable = all(os.stat(parent).st_mode & 1 for parent in (Path(guests), *Path(guests).parents))
        if not (reachable and shutil.which("setpriv")):
            pytest.skip("another user cannot enter this checkout")
        command = ["setpriv", "--reuid", "60999", "--regid", "60999", "--clear-groups", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd="/", check=False, env={})
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["holes"] == []
    assert result["said"] == "hello"
    assert result["oom"] == ["oom"] * 3
    assert result["bomb"] in ("timeout", "oom")
    assert result["forbidden"] == {"passed": []}
    spaces = "namespaces:user,pid,net,ipc,uts,mount"
    assert (spaces in result["layers"]) == (kind == "bwrap")
    frozen = [["T"]] if "no-cgroup" in result["layers"] else [["D"], ["S"], ["T"], ["t"]]
    for (answer, warm, states, size, end), wanted in zip(result["workers"], (True, False), strict=True):
        assert (answer, warm, size, end) == ({"a": 1}, wanted, 64, "signal")
        assert states in frozen
