"""Opening: the rungs by name, the self-test, and what happens where a layer is broken or missing."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile

import pytest

import kernelwright.sandbox as face
from kernelwright.errors import MissingToolError, SandboxError, UsageError
from kernelwright.sandbox import Limits, describe_host, open_sandbox, self_test


def test_the_face_is_sorted_and_complete():
    assert face.__all__ == sorted(face.__all__)
    assert all(getattr(face, name) is not None for name in face.__all__)
    with pytest.raises(AttributeError):
        face.nothing


def test_the_self_test_holds_for_programs_and_workers(sandbox):
    probes = self_test(sandbox)
    assert [probe for probe in probes if not probe.ok] == []
    names = {probe.name for probe in probes}
    assert {"program: environment", "worker: network", "worker: kernel settings", "program: write outside"} <= names


def test_the_self_test_finds_the_holes_of_no_sandbox():
    with open_sandbox("none") as sandbox:
        holes = {probe.name for probe in self_test(sandbox) if not probe.ok}
    assert {"program: environment", "program: secret file", "program: write outside", "program: network"} <= holes
    assert {"worker: other processes", "worker: privileges"} <= holes


def test_none_confines_nothing_but_time_and_output():
    with open_sandbox("none") as sandbox:
        assert sandbox.layers == ("unconfined",)
        assert sandbox.run(["sleep", "60"], limits=Limits(wall_s=0.2)).reason == "timeout"
        assert sandbox.run(["yes"], limits=Limits(output_bytes=1000)).reason == "output"
        done = sandbox.run(["sh", "-c", "cat /in/x; id -u"], files={"x": b"hi "})
        assert done.stdout == f"hi {os.getuid()}\n".encode()
        assert sandbox.call("kernelwright.sandbox._attempts:attempt", {"nothing": 1} | NO_CANARIES)


NO_CANARIES = {
    "token": "no such token",
    "secret": "/no/such/file",
    "listener": "no-such-listener",
    "canary": 1 << 22,
    "forbidden": [],
    "marked": [],
    "mark": "none",
    "namespaces": {},
    "capabilities": 0,
    "root": False,
    "sockets": 1,
}


def test_layers_are_named(bwrap, process):
    assert bwrap.name == "bwrap"
    assert {"bubblewrap", "seccomp", "rlimits", "tmpfs"} <= set(bwrap.layers)
    assert process.name == "process"
    assert {"process", "no-namespaces", "seccomp"} <= set(process.layers)


def test_unknown_kinds():
    with pytest.raises(UsageError, match="bwrap"):
        open_sandbox("docker-ish")


def test_a_missing_bubblewrap_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingToolError, match="apt install bubblewrap"):
        open_sandbox("bwrap")


def test_auto_falls_back_and_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with open_sandbox("auto") as sandbox:
        assert sandbox.name == "process"
        assert "no-namespaces" in sandbox.layers


@pytest.fixture
def canaries():
    """A directory that all users can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        yield directory


@pytest.mark.parametrize(
    ("drop", "add", "hole"),
    [
        ("--unshare-pid", "", "namespaces"),
        ("--unshare-net", "", "namespaces"),
        ("", "--bind {canary} {canary}", "write outside"),
        ("", "--ro-bind {canary} {canary}", "secret file"),
    ],
)
def test_a_bubblewrap_that_does_not_isolate_is_found_out(bwrap, monkeypatch, tmp_path, canaries, drop, add, hole):
    """A program of that name stands first on PATH, and leaves one wall out."""
    monkeypatch.setattr("tempfile.tempdir", str(canaries))
    broken = tmp_path / "bin" / "bwrap"
    broken.parent.mkdir()
    broken.write_text(FAKE.format(real=shutil.which("bwrap"), drop=drop, add=add.format(canary=canaries)))
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{broken.parent}:{os.environ['PATH']}")
    with pytest.raises(SandboxError, match=hole):
        open_sandbox("bwrap")


FAKE = """#!/usr/bin/python3
import os, sys
rest, kept = sys.argv[1:], []
while rest and rest[0] != "--":
    if rest[0] == "{drop}":
        del rest[0]
    else:
        kept.append(rest.pop(0))
os.execv("{real}", ["bwrap", *kept, *"{add}".split(), *rest])
"""


def test_warm_workers_that_are_not_isolated_are_found_out(guests, bwrap, monkeypatch):
    """The sandbox claims one namespace more than its workers have: as root it makes no user namespace."""
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's sandbox has all of them")
    with open_sandbox("bwrap", python_paths=[guests]) as sandbox:
        monkeypatch.setattr(sandbox, "namespaces", ("pid", "user"))
        for _ in range(2):
            with pytest.raises(SandboxError, match="shares user"):
                sandbox.call("sandbox_guests:double", {"value": 1})


def test_a_bubblewrap_that_fails_is_an_error_with_its_words(bwrap, monkeypatch, tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'No permissions to create namespaces' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxError, match="No permissions to create namespaces"):
        open_sandbox("bwrap")


def test_the_host_is_described():
    described = describe_host()
    assert {"bubblewrap", "control groups", "landlock", "seccomp", "user namespaces"} <= set(described)
    assert all(described.values())


def a_device() -> str:
    """A device file that no sandbox shows by itself."""
    usual = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
    names = sorted(name for name in os.listdir("/dev") if name not in usual)
    return next((f"/dev/{name}" for name in names if stat.S_ISCHR(os.lstat(f"/dev/{name}").st_mode)), "")


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_devices_are_for_those_who_may_see_them(warm):
    path = a_device()
    assert path, "no device file to try this with"
    with open_sandbox("bwrap", devices=(path,)) as sandbox:
        seen = sandbox.run(["stat", "-c", "%F", path], limits=Limits(devices=True), warm=warm)
        assert seen.stdout == b"character special file\n", seen.stderr
        hidden = sandbox.run(["stat", "-c", "%F", path], limits=Limits(), warm=warm)
        assert hidden.returncode != 0
        assert b"No such file" in hidden.stderr


NAMING = """
import threading
thread = threading.Thread(target=lambda: open(f"/proc/self/task/{threading.get_native_id()}/comm", "w").write("named"))
thread.start()
thread.join()
"""


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_threads_can_be_given_names_where_there_are_devices(warm):
    """CUDA's driver does not start (error 304) where they cannot."""
    with open_sandbox("bwrap", devices=(a_device(),)) as sandbox:
        named = sandbox.run([sys.executable, "-c", NAMING], limits=Limits(devices=True), warm=warm)
        assert (named.returncode, named.stderr) == (0, b"")
        refused = sandbox.run([sys.executable, "-c", NAMING], limits=Limits(), warm=warm)
        assert b"PermissionError" in refused.stderr or b"Read-only file system" in refused.stderr


def test_no_rung_without_sockets_is_opened_for_devices(monkeypatch):
    with pytest.raises(UsageError, match="has no sockets") as refused:
        open_sandbox("process", devices=(a_device(),))
    assert "device=none" in refused.value.hint
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SandboxError, match="has no sockets") as refused:
        open_sandbox("auto", devices=(a_device(),))
    assert "apt install bubblewrap" in refused.value.hint
    with open_sandbox("auto") as sandbox:
        assert sandbox.name == "process"


def test_the_driver_is_found_where_only_a_variable_names_its_folder(tmp_path, monkeypatch):
    path = a_device()
    (tmp_path / "libcuda.so.1").write_bytes(b"driver")
    tmp_path.chmod(0o755)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}:relative")
    with open_sandbox("bwrap", devices=(path,)) as sandbox:
        assert sandbox.environment()["LD_LIBRARY_PATH"].split(":")[0] == str(tmp_path)
        script = 'cat "${LD_LIBRARY_PATH%%:*}/libcuda.so.1"'
        done = sandbox.run(["/bin/sh", "-c", script], env=sandbox.environment(), limits=Limits(devices=True))
        assert done.stdout == b"driver", done.stderr
    with open_sandbox("bwrap") as sandbox:
        assert "LD_LIBRARY_PATH" not in sandbox.environment()


def test_containers_show_no_devices():
    with pytest.raises(UsageError, match="shows no devices"):
        open_sandbox("docker", devices=("/dev/kvm",))
