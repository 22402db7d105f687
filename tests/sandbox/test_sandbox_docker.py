"""The docker rung: what it asks of an engine, without one; then the rung itself, against Docker or podman.

The second half is marked ``docker``. ``scripts/with_docker.sh`` (``--podman``) runs it against an engine of its own.
Only what no other module of this folder shows of every rung is tested here.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_sandbox_seccomp import ALLOW, CALLS, ENOSYS, EPERM, FORK, NEWUSER, THREAD, decide

from kernelwright.config import Settings
from kernelwright.datasets import parse_problem
from kernelwright.errors import MissingToolError, SandboxError, UsageError
from kernelwright.evaluator import Referee
from kernelwright.records import Candidate, Status
from kernelwright.sandbox import (
    Exit,
    Limits,
    Mount,
    PeerClosed,
    SharedMemory,
    WorkerFailed,
    _container,
    _engine,
    _open,
    _seccomp,
    describe_host,
    open_sandbox,
    recv_message,
    self_test,
    send_message,
)

TESTS = Path(__file__).parent.parent
SCRIPT = TESTS.parent / "scripts" / "with_docker.sh"
PYTHON = [sys.executable, "-I", "-S", "-c"]
OOM = Limits(wall_s=60.0, memory_bytes=300 << 20)


# ------------------------------------------------------------------------------------------ without an engine


def body(engine="docker", **changes):
    """The request for a container with limits that are told apart."""
    limits = Limits(memory_bytes=300 << 20, pids=20, tmpfs_bytes=8 << 20, nofile=100)
    fields = {
        "engine": engine,
        "image": "image:1",
        "user": (61010, 61010),
        "nproc": 25,
        "limits": limits,
        "cpus": (0, 3),
        "binds": [("/usr", "/usr", False), ("/data", "/cache", True)],
        "seccomp": "profile",
        "runtime": "runc",
    }
    return _container.Request(**fields | changes).body()


def test_a_container_is_asked_for_with_every_wall():
    host = body()["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["IpcMode"] == host["CgroupnsMode"] == "private"
    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"]
    assert {"no-new-privileges", "seccomp=profile"} <= set(host["SecurityOpt"])
    assert host["Runtime"] == "runc"
    assert host["AutoRemove"] is True
    assert not {"Privileged", "PidMode", "CapAdd", "Devices", "Binds"} & set(host)
    assert body()["User"] == "61010:61010"
    assert body()["NetworkDisabled"] is True
    assert body(kept=True)["HostConfig"]["AutoRemove"] is False


def test_limits_become_the_engines_limits():
    host = body()["HostConfig"]
    assert (host["Memory"], host["MemorySwap"]) == (300 << 20, 300 << 20)
    assert 20 < host["PidsLimit"] <= 30
    ulimits = {limit["Name"]: (limit["Soft"], limit["Hard"]) for limit in host["Ulimits"]}
    assert ulimits["nproc"] == (25, 25)
    assert 100 <= ulimits["nofile"][1] <= 120
    assert ulimits["core"] == (1, 1)
    assert host["ShmSize"] == 8 << 20
    assert host["CpusetCpus"] == "0,3"
    for place in ("/tmp", "/job"):
        options = host["Tmpfs"][place].split(",")
        assert {f"size={8 << 20}", "mode=1777", "nosuid", "nodev", "exec"} <= set(options)


def test_directories_of_the_host_are_read_only_unless_asked():
    mounts = {mount["Target"]: mount for mount in body()["HostConfig"]["Mounts"]}
    assert mounts["/usr"] == {"Type": "bind", "Source": "/usr", "Target": "/usr", "ReadOnly": True}
    assert mounts["/cache"] == {"Type": "bind", "Source": "/data", "Target": "/cache", "ReadOnly": False}


def test_the_first_program_starts_with_an_empty_environment():
    assert body()["Entrypoint"][:3] == ["/usr/bin/env", "-i", sys.executable]
    assert "Env" not in body()


def test_podmans_own_writable_places_are_closed():
    tmpfs = body("podman")["HostConfig"]["Tmpfs"]
    assert {"/run", "/var/tmp"} <= set(tmpfs)
    assert "mode=755" in tmpfs["/run"]
    assert "nr_inodes" not in tmpfs["/job"]  # version 4 refuses it


def test_a_kernel_that_is_a_program_gets_room_for_its_own_threads():
    assert body(runtime="runsc", shares_kernel=False)["HostConfig"]["PidsLimit"] > 500


def answer(profile, name, *arguments):
    """What an engine's filter answers to a call; all conditions of a rule must hold, equality is of 64 bits."""
    values = [*arguments, 0, 0, 0, 0, 0, 0]
    holds = {
        "SCMP_CMP_NE": lambda value, arg: value != arg["value"],
        "SCMP_CMP_MASKED_EQ": lambda value, arg: value & arg["value"] == arg["valueTwo"],
    }
    for rule in profile["syscalls"]:
        if name in rule["names"] and all(holds[arg["op"]](values[arg["index"]], arg) for arg in rule.get("args", ())):
            assert rule["action"] == "SCMP_ACT_ERRNO"
            return 0x00050000 | rule["errnoRet"]
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    return ALLOW


ARGUMENTS = [
    ("socket", (1,)),
    ("socket", (2,)),
    ("socket", (16,)),
    ("clone", (THREAD,)),
    ("clone", (FORK,)),
    ("clone", (FORK | NEWUSER,)),
    ("clone", (FORK | 0x02000000,)),
    ("ioctl", (0, 0x5401)),
    ("ioctl", (0, 0x5412)),
    ("ioctl", (0, 0x1_0000_5412)),
    ("ioctl", (0, 0x40045436)),
    ("prctl", (1,)),
    ("prctl", (4,)),
    ("prctl", (15,)),
    ("prctl", (0x1_0000_0001,)),
]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("level", ["base", "offline", "contestant"])
def test_an_engines_filter_answers_as_our_own(machine, level):
    limits = {"x86_64": 302, "aarch64": 261}[machine]
    for process, refused in {0: ALLOW, 1: EPERM}.items():
        assert decide(level, machine, limits, process) == refused
        assert answer(_seccomp.container_profile(level, machine), "prlimit64", process) == refused
    profile = _seccomp.container_profile(level, machine)
    assert profile["architectures"] == [f"SCMP_ARCH_{machine.upper()}"]
    for name, number in CALLS[machine].items():
        for arguments in [given for called, given in ARGUMENTS if called == name] or [()]:
            ours = decide(level, machine, number, *arguments)
            assert answer(profile, name, *arguments) == ours, (name, arguments)
    assert answer(profile, "clone3") == ENOSYS
    assert answer(profile, "mount") == EPERM


def test_the_base_image_is_the_hosts_links_and_nothing_else():
    data = _engine.image_archive([("/lib", "usr/lib"), ("/bin", "usr/bin")])
    assert data == _engine.image_archive([("/bin", "usr/bin"), ("/lib", "usr/lib")])
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = {member.name: member for member in archive}
    assert members["bin"].linkname == "usr/bin"
    assert members["job"].mode == 0o1777
    assert not [member for member in members.values() if member.isfile()]


def test_a_missing_engine_says_what_to_do(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/engine.sock")
    with pytest.raises(MissingToolError, match=r"start docker .*with_docker\.sh.*DOCKER_HOST.*--sandbox bwrap"):
        open_sandbox("docker")
    assert describe_host()["container engine"].startswith("none of use")


def test_an_engine_on_another_machine_is_refused(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    with pytest.raises(SandboxError, match="socket of this machine"):
        open_sandbox("docker")


def test_a_missing_sdk_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(MissingToolError, match="pip install 'docker>=7,<8'"):
        open_sandbox("docker")


def test_runtimes_belong_to_containers():
    with pytest.raises(UsageError, match="no runtimes"):
        open_sandbox("bwrap", runtime="runsc")


def client(components=(), **info):
    """An engine that only describes itself."""
    answers = {"Runtimes": {"runc": {}}, "DefaultRuntime": "runc", "MemoryLimit": True} | info
    version = {"Version": "1", "Components": [{"Name": name} for name in components]}
    return SimpleNamespace(api=SimpleNamespace(version=lambda: version, info=lambda: answers))


@pytest.mark.parametrize(
    ("answers", "error", "words"),
    [
        ({"Rootless": True}, SandboxError, "maps user ids"),
        ({"SecurityOptions": ["name=seccomp,profile=default", "name=rootless"]}, SandboxError, "maps user ids"),
        ({"SecurityOptions": ["name=userns"]}, SandboxError, "maps user ids"),
        ({}, MissingToolError, "no runtime 'runsc'"),
    ],
)
def test_engines_of_no_use_are_refused(answers, error, words):
    with pytest.raises(error, match=words):
        _engine.Engine(client(**answers), runtime="runsc" if not answers else "")


def test_engines_are_told_apart():
    docker = _engine.Engine(client(components=["Engine", "containerd"]))
    podman = _engine.Engine(client(components=["Podman Engine"], DefaultRuntime="kata", PidsLimit=True))
    assert (docker.kind, docker.runtime, docker.limits, docker.shares_kernel) == ("docker", "runc", ("memory",), True)
    assert (podman.kind, podman.runtime, podman.shares_kernel) == ("podman", "kata", False)
    assert podman.limits == ("memory", "pids")


def test_an_owner_is_dead_only_where_that_can_be_seen():
    boot, space, pid, started = _engine.owner().split("/")
    assert pid == str(os.getpid())
    with subprocess.Popen(["true"]) as ended:
        pass
    for label, stale in {
        f"{boot}/{space}/{pid}/{started}": False,
        f"{boot}/{space}/{pid}/{int(started) - 1}": True,  # its number has been given to another process
        f"{boot}/{space}/{ended.pid}/1": True,
        f"another boot/{space}/{pid}/{started}": True,
        f"{boot}/pid:[1]/{ended.pid}/1": False,
    }.items():
        assert _engine.is_stale(label) == stale, label


# ------------------------------------------------------------------------------------------ against an engine


@pytest.fixture(scope="module")
def docker(guests):
    """The rung, opened once. An engine that is named and does not answer is an error, not a reason to skip."""
    try:
        sandbox = open_sandbox("docker", python_paths=[guests])
    except MissingToolError as error:
        if "DOCKER_HOST" in os.environ:
            raise
        pytest.skip(f"run this under scripts/with_docker.sh: {error}")
    with sandbox:
        yield sandbox


@pytest.fixture(params=["warm", "cold"])
def start(request, docker):
    """Starts guests of one temperature; all are killed in the end."""
    started = []
    warm = request.param == "warm"
    if warm and os.geteuid() != 0:
        pytest.skip("only root can put a worker into a container")

    def start(entry, **options):
        ours, theirs = socket.socketpair()
        started.append(ours)
        worker = docker.start_worker(f"sandbox_guests:{entry}", sock=theirs, warm=warm, **options)
        started.append(worker)
        assert worker.warm == warm
        return worker, ours

    yield start
    for thing in reversed(started):
        thing.close() if isinstance(thing, socket.socket) else thing.kill()


def engine():
    import docker as sdk

    return sdk.from_env().api


def containers(owner=None):
    """Ids of the containers that a process (this one) owns."""
    with engine() as api:
        found = api.containers(all=True, filters={"label": _engine.OWNER_LABEL})
    pid = os.getpid() if owner is None else owner
    return [each["Id"] for each in found if each["Labels"][_engine.OWNER_LABEL].split("/")[2] == str(pid)]


def python(sandbox, source, limits=OOM, **options):
    return sandbox.run([*PYTHON, source], limits=limits, **options)


def ask(sock, message, fds=()):
    send_message(sock, message, fds)
    return recv_message(sock, timeout_s=60.0, max_fds=0)[0]


@pytest.mark.docker
def test_the_rung_is_named_and_holds(docker):
    assert docker.name == "docker"
    assert docker.layers[0] in ("docker", "podman")
    assert {"runtime:runc", "namespaces:pid,net,ipc,uts,mount", "tmpfs", "seccomp"} <= set(docker.layers)
    assert [probe for probe in self_test(docker) if not probe.ok] == []
    assert describe_host()["container engine"].startswith(docker.layers[0])


@pytest.mark.docker
def test_a_program_gets_files_input_and_environment(docker):
    done = docker.run(
        ["sh", "-c", 'cat /in/a.txt /in/sub/b.txt; cat; echo "$GREETING" >&2; pwd -P > x; test -O x && exit 3'],
        files={"a.txt": b"A", "sub/b.txt": b"B"},
        env={"GREETING": "hello"},
        stdin=b"C",
    )
    assert (done.returncode, done.stdout, done.stderr, done.reason, done.signal) == (3, b"ABC", b"hello\n", "", None)
    assert docker.run(["no-such-program"]).returncode == 127
    done = python(docker, "import os; os.abort()")
    assert (done.returncode, done.signal, done.reason) == (None, signal.SIGABRT, "signal")
    assert containers() == []


@pytest.mark.docker
def test_a_compiler_works(docker):
    source = b'extern "C" int twice(int x) { return 2 * x; }'
    command = "g++ -O1 -shared -fPIC -o /job/k.so /in/k.cpp && cat /job/k.so"
    done = docker.run(["sh", "-c", command], files={"k.cpp": source}, limits=Limits(output_bytes=8 << 20))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"\x7fELF")


@pytest.mark.docker
def test_nothing_of_the_host_is_in_reach(docker, tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_text("token")
    monkeypatch.setenv("KERNELWRIGHT_TEST_SECRET", "token")
    source = f"""
import json, os, resource, socket
found = []
def attempt(name, function):
    try: function()
    except OSError: return
    found.append(name)
attempt("core_pattern", lambda: open("/proc/sys/kernel/core_pattern", "r+"))
attempt("memory of 1", lambda: open("/proc/1/mem", "r+b"))
attempt("descriptors of 1", lambda: os.listdir("/proc/1/fd"))
attempt("end of 1", lambda: os.kill(1, 0) or open("/proc/1/environ").read())
attempt("secret", lambda: open({str(secret)!r}))
for path in ("/etc/shadow", "/etc/hostname", "/etc/hosts", "/dev/ptmx", "/dev/console", "/sys/kernel/notes"):
    attempt(path, lambda: open(path))
attempt("limits of 1", lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (4, 4)))
inside = ["/", "/usr", "/etc", "/dev", "/in", "/var/tmp", "/run", "/run/kernelwright", "/sys/fs/cgroup", "/root"]
for place in inside + [{str(tmp_path)!r}]:
    attempt("write " + place, lambda: open(place + "/x", "w"))
for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock"):
    attempt("engine at " + path, lambda: os.stat(path))
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET, 40):
    attempt(f"socket {{family}}", lambda: socket.socket(family))
attempt("signal outside", lambda: os.kill({os.getpid()}, 0))
attempt("left socket", lambda: [][0 if os.listdir("/run/kernelwright") else open("/none")])
interfaces = [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]
processes = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
print(json.dumps([found, sorted(os.environ), interfaces, len(processes), os.uname().nodename]))
"""
    done = python(docker, source)
    assert done.returncode == 0, done.stderr
    found, environment, interfaces, processes, hostname = json.loads(done.stdout)
    assert found == []
    assert not [name for name in environment if name.startswith(("KERNELWRIGHT", "DOCKER", "container"))]
    assert interfaces == ["lo"]
    assert processes == 2  # process 1 and the program
    assert hostname == "sandbox"


@pytest.mark.docker
def test_limits_end_a_program(docker):
    bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    hoard = "hoard = []\nwhile True: hoard.append(b'x' * (32 << 20))"
    for source, limits, reasons in [
        (hoard, OOM, ["oom"]),
        (bomb, Limits(wall_s=1.0, pids=32, memory_bytes=512 << 20), ["timeout", "oom"]),
        ("import os\nwhile True: os.write(1, b'x' * 65536)", Limits(output_bytes=100_000), ["output"]),
        ("while True: pass", Limits(wall_s=0.3), ["timeout"]),
        ("while True: pass", Limits(cpu_s=1), ["signal"]),
    ]:
        done = python(docker, source, limits)
        assert done.reason in reasons, source
        assert len(done.stdout) <= limits.output_bytes
    assert docker.run(["echo", "alive"]).stdout == b"alive\n"
    assert containers() == []


@pytest.mark.docker
def test_processes_are_counted(docker):
    source = """
import os, signal
made = 0
try:
    while True:
        if os.fork() == 0: signal.pause()
        made += 1
except OSError: print(made)
"""
    assert 8 <= int(python(docker, source, Limits(pids=10)).stdout) <= 16


@pytest.mark.docker
def test_a_full_file_system_is_an_error_inside(docker):
    source = """
for place in ("/tmp", "/job", "/dev/shm"):
    size = 0
    try:
        for number in range(100):
            with open(f"{place}/{number}", "wb") as file: size += file.write(b"x" * (1 << 20))
    except OSError: print(place, size >> 20)
"""
    done = python(docker, source, Limits(tmpfs_bytes=8 << 20))
    assert done.stdout == b"/tmp 8\n/job 8\n/dev/shm 8\n"


@pytest.mark.docker
def test_a_worker_answers_is_read_from_outside_and_leaves_no_container(start):
    worker, sock = start("echo")
    assert ask(sock, {"a": 1}) == {"a": 1}
    assert worker.alive()
    assert len(containers()) == 1
    with open(f"/proc/{worker.pid}/maps") as file:
        address = next(int(line.split("-")[0], 16) for line in file if " r" in line)
    assert read_memory(worker.pid, address, 64) == 64
    end = worker.kill()
    assert end == Exit(None, signal.SIGKILL, "signal")
    assert containers() == []
    assert worker.kill() == end
    assert not worker.alive()
    with pytest.raises(PeerClosed):
        recv_message(sock, timeout_s=5.0)


def read_memory(pid, address, size):
    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

    buffer = ctypes.create_string_buffer(size)
    local, remote = Vector(ctypes.addressof(buffer), size), Vector(address, size)
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)


@pytest.mark.docker
def test_what_a_worker_sees_of_itself(start, docker):
    worker, sock = start("report", env={"GIVEN": "yes"}, cpus=[0])
    seen = recv_message(sock, timeout_s=60.0)[0]
    assert seen["affinity"] == [0]
    assert seen["fds"] == ["/dev/null", "pipe", "pipe", "socket"]
    assert seen["env"]["GIVEN"] == "yes"
    assert not [name for name in seen["env"] if name.startswith(("PYTEST", "VIRTUAL", "DOCKER"))]
    assert seen["torch_loaded"] == worker.warm
    assert seen["cwd"] == "/job"
    if os.geteuid() == 0:
        assert seen["uid"] >= 61010
    assert worker.layers == ((*("zygote",) * worker.warm, *docker.layers[:-1], "seccomp:contestant"))


@pytest.mark.docker
def test_a_worker_is_under_its_containers_limits(start):
    """In every hierarchy, also where it was forked outside and entered."""
    worker, _ = start("echo")
    (container,) = containers()
    paths = [line.split(":", 2)[2] for line in Path(f"/proc/{worker.pid}/cgroup").read_text().splitlines()]
    assert [path for path in paths if container not in path] == []
    worker, _ = start("allocate", limits=OOM)
    assert worker.wait(60.0) == Exit(None, signal.SIGKILL, "oom")


@pytest.mark.docker
def test_freezing_is_confirmed(start):
    worker, sock = start("count")
    with SharedMemory.create(4096, "count") as memory:
        counters = memory.view.cast("Q")
        assert ask(sock, {}, [memory.fd]) == {"ready": True}
        for _ in range(5):
            worker.freeze()
            before = counters[0], counters[1]
            assert all((counters[0], counters[1]) == before for _ in range(20_000))
            worker.thaw()
            deadline = time.monotonic() + 30.0
            while counters[0] == before[0] or counters[1] == before[1]:
                assert time.monotonic() < deadline, "the worker does not run again"
        worker.freeze()
        counters.release()
    assert worker.kill() == Exit(None, signal.SIGKILL, "signal")


@pytest.mark.docker
def test_how_workers_end(start):
    for entry, limits, expected in [
        ("finish", Limits(), Exit(0, None, "")),
        ("leave", Limits(), Exit(7, None, "exit")),
        ("stumble", Limits(), Exit(1, None, "exit")),
        ("crash", Limits(), Exit(None, signal.SIGSEGV, "signal")),
        ("hang", Limits(wall_s=0.3), Exit(None, signal.SIGKILL, "timeout")),
        ("chatter", Limits(output_bytes=50_000), Exit(None, signal.SIGKILL, "output")),
    ]:
        worker, _ = start(entry, limits=limits)
        assert worker.wait(60.0) == expected, entry
        assert (b"RuntimeError: lost" in worker.output()[1]) == (entry == "stumble")
    assert containers() == []


@pytest.mark.docker
def test_daemons_of_a_worker_die_with_it(start):
    worker, sock = start("fork_daemons", limits=Limits(allow_exec=True))
    assert recv_message(sock, timeout_s=60.0)[0] == {"ready": True}
    worker.kill()
    with pytest.raises(PeerClosed):  # each of them held the worker's end of the socket
        recv_message(sock, timeout_s=30.0)


@pytest.mark.docker
def test_a_mount_shows_and_only_a_writable_one_can_be_written(docker, start, tmp_path):
    (tmp_path / "data").write_text("seen")
    tmp_path.chmod(0o777)
    for writable in (False, True):
        worker, sock = start("read_data", mounts=[Mount(str(tmp_path), "/data/here", writable=writable)])
        assert recv_message(sock, timeout_s=60.0)[0] == {"data": "seen", "written": writable}
        assert worker.wait(60.0) == Exit(0, None, "")
    with pytest.raises(SandboxError):
        docker.run(["true"], mounts=[Mount(str(tmp_path / "missing"))])
    assert containers() == []


@pytest.mark.docker
def test_calls(docker):
    assert docker.call("sandbox_guests:double", {"value": 21}) == {"value": 42}
    assert docker.call("sandbox_guests:forbidden", {}) == {"passed": []}
    for entry, limits, kind in [("refuse", Limits(), "exception"), ("hoard", OOM, "oom")]:
        with pytest.raises(WorkerFailed) as caught:
            docker.call(f"sandbox_guests:{entry}", {}, limits=limits)
        assert caught.value.kind == kind
    assert containers() == []


@pytest.mark.docker
def test_no_descriptor_is_left(docker, open_fds):
    def use():
        assert docker.run(["echo", "a"], files={"x": b""}).stdout == b"a\n"
        assert docker.call("sandbox_guests:double", {"value": 1}) == {"value": 2}
        with pytest.raises(SandboxError):
            docker.run(["true"], limits=Limits(nofile=-5))

    use()
    before = open_fds()
    for _ in range(3):
        use()
    assert open_fds() == before


@pytest.mark.docker
@pytest.mark.parametrize(
    ("change", "hole"),
    [
        ({"NetworkMode": "host"}, "shares net"),
        ({"PidMode": "host"}, "shares pid"),
        ({"IpcMode": "host", "ShmSize": 0}, "shares ipc"),
    ],
)
def test_an_engine_that_does_not_isolate_is_found_out(docker, monkeypatch, change, hole):
    whole = _container.Request.body

    def broken(request):
        asked = whole(request)
        return asked | {"NetworkDisabled": False, "HostConfig": asked["HostConfig"] | change}

    monkeypatch.setattr(_container.Request, "body", broken)
    monkeypatch.setattr(_open, "_passed", set())
    with pytest.raises(SandboxError, match=hole):
        open_sandbox("docker")
    assert containers() == []


@pytest.mark.docker
def test_a_container_that_does_not_come_up_is_an_error_with_its_words(docker, monkeypatch):
    monkeypatch.setattr(_open, "_passed", set())
    monkeypatch.setattr(sys, "executable", "/no/such/interpreter")
    with pytest.raises(SandboxError, match="/no/such/interpreter"):
        open_sandbox("docker")
    assert containers() == []


@pytest.mark.docker
def test_closing_removes_containers_and_keeps_the_image(docker, guests):
    sandbox = open_sandbox("docker", python_paths=[guests])
    ours, theirs = socket.socketpair()
    with ours:
        worker = sandbox.start_worker("sandbox_guests:hang", sock=theirs)
        sandbox.close()
        sandbox.close()
        assert worker.wait(0) is not None
        assert ours.recv(1) == b""
    assert containers() == []
    with pytest.raises(SandboxError, match="closed"):
        sandbox.run(["true"])
    with engine() as api:
        assert api.images("kernelwright-sandbox")


OWNER = """
import socket, sys
from kernelwright.sandbox import open_sandbox
sandbox = open_sandbox("docker", python_paths=[sys.argv[1]])
pids = []
for warm in (True, False):
    ours, theirs = socket.socketpair()
    pids.append(sandbox.start_worker("sandbox_guests:hang", sock=theirs, warm=warm).pid)
print(*pids, flush=True)
sys.stdin.read()
"""


@pytest.mark.docker
def test_containers_end_with_an_owner_that_is_killed(docker, guests):
    command = [sys.executable, "-c", OWNER, guests]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(
        command, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, **pipes
    ) as owner:
        pidfds = [os.pidfd_open(int(pid)) for pid in owner.stdout.readline().split()]
        assert len(containers(owner.pid)) == 2
        owner.kill()
    for fd in pidfds:
        assert select.select([fd], [], [], 30.0)[0], "a worker outlived its owner"
        os.close(fd)
    open_sandbox("docker").close()  # removes what is not gone by itself yet
    assert containers(owner.pid) == []


@pytest.mark.docker
def test_containers_of_dead_owners_are_removed_and_of_live_ones_kept(docker):
    with subprocess.Popen(["true"]) as ended:
        pass
    boot, space, _, _ = _engine.owner().split("/")
    images = _engine.connect()
    image = images.base_image(docker.view.links)
    images.close()
    made = {}
    with engine() as api:
        for name, label in {"dead": f"{boot}/{space}/{ended.pid}/1", "alive": _engine.owner()}.items():
            asked = {"Image": image, "Cmd": ["/bin/true"], "Labels": {_engine.OWNER_LABEL: label}}
            made[name] = api.create_container_from_config(asked)["Id"]
        try:
            open_sandbox("docker").close()
            left = {each["Id"] for each in api.containers(all=True)}
            assert made["dead"] not in left
            assert made["alive"] in left
        finally:
            api.remove_container(made["alive"], force=True)


@pytest.mark.docker
def test_programs_under_gvisor(docker, guests):
    if shutil.which("runsc") is None or docker.layers[0] != "docker":
        pytest.skip("gVisor (runsc) is not installed, or the engine is podman")
    with open_sandbox("docker", python_paths=[guests], runtime="runsc") as sandbox:
        assert {"runtime:runsc", "no-landlock"} <= set(sandbox.layers)
        assert [probe for probe in self_test(sandbox) if not probe.ok] == []
        done = sandbox.run(["sh", "-c", "cat /in/a; exit 3"], files={"a": b"A"})
        assert (done.returncode, done.stdout) == (3, b"A")
        assert python(sandbox, "while True: pass", Limits(wall_s=0.5)).reason == "timeout"
        ours, theirs = socket.socketpair()
        with ours, pytest.raises(SandboxError, match="workers cannot run under runsc"):
            sandbox.start_worker("sandbox_guests:echo", sock=theirs)


@pytest.mark.docker
def test_a_candidate_is_judged_in_containers(docker, tmp_path):
    source = (TESTS / "adversarial" / "problems" / "row_softmax.py").read_text()
    right = runpy.run_path(str(TESTS / "evaluator" / "referee_candidates.py"))["RIGHT"]
    problem = parse_problem(source, id="test/level1/row_softmax", suite="test", level=1, name="row_softmax")
    flags = {"sandbox": "docker", "cache_dir": str(tmp_path), "measurement": {"looks": (8, 12), "window_ms": 0.5}}
    with Referee(Settings.load(flags=flags | {"memory_bytes": 1 << 30}, env={})) as referee:
        with referee.open(problem, baselines=("eager",)) as session:
            candidate = Candidate(problem_id=problem.id, source=right, backend="cpp")
            verdict = session.judge(candidate).verdict
    assert (verdict.status, verdict.reason) == (Status.PASSED, "")
    assert verdict.timing is not None
    assert {"docker", "podman"} & set(verdict.sandbox)
    assert containers() == []


# ------------------------------------------------------------------------------------------ the script


def test_the_script_wants_a_command():
    done = subprocess.run([str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage" in done.stderr


@pytest.mark.docker
def test_the_script_hands_the_status_on_and_leaves_nothing(docker):
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("a private engine needs root and docker")
    command = [
        str(SCRIPT),
        "sh",
        "-c",
        'echo "$DOCKER_HOST"; docker run --rm none 2>/dev/null; read line; exit "$line"',
    ]
    done = subprocess.run(command, input="7\n", capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    folder = Path(done.stdout.strip().removeprefix("unix://")).parent
    assert folder.name.startswith("kw-docker.")
    assert not folder.exists()
    assert str(folder) not in Path("/proc/mounts").read_text()
    assert not [line for line in command_lines() if str(folder) in line]


def command_lines():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().decode(errors="replace")
        except OSError:
            continue
