"""One-shot programs: what they get, what they can't reach, and how each limit ends them. On each rung that confines."""

from __future__ import annotations

import json
import os
import socket
import sys

import pytest

from kernelwright.errors import UsageError
from kernelwright.sandbox import Limits, Mount

PYTHON = [sys.executable, "-I", "-S", "-c"]
SHORT = Limits(wall_s=20.0, memory_bytes=256 << 20)


class Warm:
    """A sandbox whose programs are started by forks of its zygote."""

    def __init__(self, sandbox):
        self._sandbox = sandbox

    def run(self, argv, **options):
        return self._sandbox.run(argv, warm=True, **options)


@pytest.fixture(params=["cold", "warm"])
def bwrap(request, bwrap):
    return bwrap if request.param == "cold" else Warm(bwrap)


@pytest.fixture(params=["cold bwrap", "warm bwrap", "process"])
def sandbox(request):
    if request.param == "process":
        return request.getfixturevalue("process")
    cold = request.getfixturevalue("only_bwrap")
    return cold if request.param == "cold bwrap" else Warm(cold)


def python(sandbox, source, limits=SHORT, **options):
    return sandbox.run([*PYTHON, source], limits=limits, **options)


def test_files_environment_input_and_output(sandbox):
    done = sandbox.run(
        ["sh", "-c", 'cat /in/a.txt /in/sub/b.txt; cat; echo "$GREETING" >&2; pwd -P > x; test -O x && exit 3'],
        files={"a.txt": b"A", "sub/b.txt": b"B"},
        env={"GREETING": "hello"},
        stdin=b"C",
    )
    assert (done.returncode, done.stdout, done.stderr, done.reason, done.signal) == (3, b"ABC", b"hello\n", "", None)


def test_a_compiler_works(sandbox):
    source = b'extern "C" int twice(int x) { return 2 * x; }'
    command = "g++ -O1 -shared -fPIC -o /job/k.so /in/k.cpp && cat /job/k.so"
    done = sandbox.run(["sh", "-c", command], files={"k.cpp": source}, limits=Limits(output_bytes=8 << 20))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"\x7fELF")
    failed = sandbox.run(["sh", "-c", command], files={"k.cpp": b"syntax error"})
    assert failed.returncode == 1
    assert b"error" in failed.stderr


def test_warm_programs_are_forked_where_that_can_be_done(only_bwrap):
    def first_process(**options):
        return only_bwrap.run(["sh", "-c", "echo $$; cat /in/9 -"], warm=True, **options).stdout.split()

    names = [str(number) for number in range(10)]
    assert first_process() == [b"1"]
    assert first_process(files={"9": b"x"}) == [b"1", b"x"]
    for options in ({"files": dict.fromkeys(names, b"x")}, {"files": {"9": b"x"}, "stdin": b" "}):
        number, content = first_process(**options)  # started by bubblewrap
        assert int(number) > 1
        assert content == b"x"


def test_files_cannot_be_changed(bwrap):
    source = """
import os
for attempt in (lambda: open("/in/a", "ab"), lambda: os.chmod("/in/a", 0o666), lambda: open("/in/b", "wb"),
                lambda: os.unlink("/in/a"), lambda: os.rename("/in/a", "/job/a")):
    try: attempt()
    except OSError: continue
    print("changed")
print(len(open("/in/a", "rb").read()))
"""
    assert python(bwrap, source, files={"a": b"x" * 3_000_000}).stdout == b"3000000\n"


def test_mounts_show_read_only_unless_asked(bwrap, tmp_path):
    tmp_path.chmod(0o777)
    (tmp_path / "data").write_text("seen")
    shell = ["sh", "-c", "cat /data/data; touch /data/new"]
    done = bwrap.run(shell, mounts=[Mount(str(tmp_path), "/data")])
    assert (done.returncode, done.stdout) == (1, b"seen")
    done = bwrap.run(shell, mounts=[Mount(str(tmp_path), "/data", writable=True)])
    assert done.returncode == 0
    assert (tmp_path / "new").exists()


@pytest.mark.parametrize("writable", [False, True])
def test_a_directory_shown_at_its_own_place_is_read_only_unless_asked(sandbox, tmp_path, writable):
    tmp_path.chmod(0o777)
    (tmp_path / "data").write_text("seen")
    shell = ["sh", "-c", f"cat {tmp_path}/data; touch {tmp_path}/new"]
    done = sandbox.run(shell, mounts=[Mount(str(tmp_path), writable=writable)])
    assert done.stdout == b"seen"
    assert (tmp_path / "new").exists() is writable


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../escape", "a/../../b", "a//b", "a\0b"])
def test_file_names_that_lead_elsewhere_are_refused(sandbox, name):
    with pytest.raises(UsageError):
        sandbox.run(["true"], files={name: b""})


def test_a_missing_program_and_a_signal(sandbox):
    assert sandbox.run(["no-such-program"]).returncode == 127
    done = python(sandbox, "import ctypes; ctypes.string_at(0)")
    assert (done.returncode, done.signal, done.reason) == (None, 11, "signal")


# ------------------------------------------------------------------------------------------ limits


def test_memory_on_the_heap(bwrap):
    done = python(bwrap, "hoard = []\nwhile True: hoard.append(b'x' * (32 << 20))")
    assert done.reason == "oom"


def test_memory_in_a_hundred_gigabytes_of_shared_mappings(sandbox):
    source = """
import mmap
hoard = []
for _ in range(100 << 4):
    hoard.append(mmap.mmap(-1, 64 << 20))
    for page in range(0, 64 << 20, 4096): hoard[-1][page] = 1
"""
    assert python(sandbox, source).reason == "oom"


def test_a_full_file_system_is_an_error_inside(bwrap):
    source = """
import os
for place in ("/tmp", "/job", "/dev/shm"):
    size = 0
    try:
        for number in range(100):
            with open(f"{place}/{number}", "wb") as file:
                size += file.write(b"x" * (1 << 20))
    except OSError:
        print(place, size >> 20)
"""
    done = python(bwrap, source, Limits(wall_s=20.0, tmpfs_bytes=8 << 20))
    assert done.stdout == b"/tmp 8\n/job 8\n/dev/shm 8\n"


def test_a_fork_bomb(sandbox):
    source = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    done = python(sandbox, source, Limits(wall_s=1.0, pids=32, memory_bytes=512 << 20))
    assert done.reason in ("timeout", "oom")
    assert sandbox.run(["echo", "alive"]).stdout == b"alive\n"


def test_endless_output(sandbox):
    for stream in (1, 2):
        done = python(sandbox, f"import os\nwhile True: os.write({stream}, b'x' * 65536)", Limits(output_bytes=100_000))
        assert done.reason == "output"
        assert len((done.stdout, done.stderr)[stream - 1]) == 100_000


def test_a_program_that_ignores_every_signal(sandbox):
    source = """
import signal
for number in set(range(1, 65)) - {9, 19, 32, 33}: signal.signal(number, signal.SIG_IGN)
while True: signal.pause()
"""
    done = python(sandbox, source, Limits(wall_s=0.3))
    assert (done.reason, done.signal) == ("timeout", 9)


def test_processor_time(sandbox):
    done = python(sandbox, "while True: pass", Limits(cpu_s=1, wall_s=60.0))
    assert done.reason == "signal"


def test_a_daemon_is_gone_when_run_returns(sandbox):
    token = f"daemon of {os.getpid()}"
    source = f"""
import os, signal  # {token}
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            while True: signal.pause()
        os._exit(0)
    os.wait()
print("left", flush=True)
"""
    assert python(sandbox, source).stdout == b"left\n"
    assert [pid for pid in os.listdir("/proc") if pid.isdigit() and token in command_line(pid)] == []


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def test_sparse_files_and_core_dumps_are_bounded(sandbox):
    source = """
import resource
print(resource.getrlimit(resource.RLIMIT_CORE))
try: open("big", "wb").truncate(1 << 40)
except OSError as error: print(error.strerror)
"""
    assert python(sandbox, source).stdout == b"(1, 1)\nFile too large\n"


# ------------------------------------------------------------------------------------------ reaching out


def test_nothing_of_the_host_is_in_reach(sandbox, tmp_path):
    """The self-test's own attempts are separate code; these are spelled out once more."""
    secret = tmp_path / "secret"
    secret.write_text("token")
    secret.chmod(0o644)
    source = f"""
import json, os, socket
found = []
def attempt(name, function):
    try: function()
    except OSError: return
    found.append(name)
attempt("core_pattern", lambda: open("/proc/sys/kernel/core_pattern", "r+"))
if os.getpid() != 1: attempt("memory of 1", lambda: open("/proc/1/mem", "r+b"))
attempt("secret", lambda: open({str(secret)!r}))
attempt("shadow", lambda: open("/etc/shadow"))
for path in ("/x", "/usr/x", "/etc/x", "/dev/x", "/in/x", "/var/tmp/x", {str(tmp_path / "x")!r}):
    attempt("write " + path, lambda: open(path, "w"))
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET, 40):
    attempt(f"socket {{family}}", lambda: socket.socket(family))
attempt("priority", lambda: os.nice(-5))
attempt("signal the parent", lambda: os.kill({os.getpid()}, 0))
print(json.dumps([found, sorted(os.environ)]))
"""
    os.environ["KERNELWRIGHT_TEST_SECRET"] = "token"
    try:
        done = python(sandbox, source)
    finally:
        del os.environ["KERNELWRIGHT_TEST_SECRET"]
    assert done.returncode == 0, done.stderr
    found, environment = json.loads(done.stdout)
    assert found == []
    assert "KERNELWRIGHT_TEST_SECRET" not in environment


def test_the_environment_of_no_process_in_sight_holds_ours(bwrap):
    """Also not that of process 1: bubblewrap itself has to be started clean."""
    source = """
import glob
for path in glob.glob("/proc/[0-9]*/environ"):
    try: print(path, sorted(line.split(b"=")[0] for line in open(path, "rb").read().split(b"\\0") if line))
    except PermissionError: pass
"""
    done = python(bwrap, source)
    assert done.stdout
    assert b"PYTEST" not in done.stdout
    assert b"VIRTUAL_ENV" not in done.stdout


def test_abstract_sockets_of_the_host_are_out_of_reach(sandbox):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0kernelwright-test-{os.getpid()}")
        listener.listen()
        source = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0kernelwright-test-{os.getpid()}')"
        assert python(sandbox, source).returncode == 1


def test_each_live_sandbox_has_its_own_user(sandbox):
    if os.geteuid() != 0:
        pytest.skip("only root can change users")
    uid = int(sandbox.run(["id", "-u"]).stdout)
    assert uid >= 61010
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as taken:
        taken.bind(f"\0kernelwright-slot-{uid}")
        assert int(sandbox.run(["id", "-u"]).stdout) != uid
