"""The share of own kernels, sampled over real processes that work for a given processor time on request."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy
import pytest

import kernelwright
from kernelwright.errors import MissingToolError, UsageError
from kernelwright.evaluator.cpu.share import ShareSampler
from kernelwright.evaluator.own.shares import FOREIGN_AT_MOST, OWN_AT_LEAST, Share, label
from kernelwright.sandbox import Exit, open_sandbox, product_memfd, recv_message, send_message

WORK_S = 0.3  # processor time of one piece of work: a thousand samples, or a few dozen on a crowded machine
ENOUGH = 8
MANY = 60  # samples, whose share of one half or so is right within 0.2
EXACT = 400  # the same within 0.075
MOST = 0.7  # nearly all, by a few samples
SYSTEM_PYTHON = "/usr/bin/python3"

PRODUCT = """
#include <cmath>
#include <ctime>
#include <thread>
static volatile double sink;
static double used() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}
extern "C" void spin(double seconds) {
  for (double end = used() + seconds; used() < end;) {
    double x = 0;
    for (int i = 0; i < 100000; i++) x = x * 0.5 + i;
    sink = x;
  }
}
extern "C" unsigned long steps(unsigned long n) {
  unsigned long x = 1;
  for (; n; n--) x = x * 6364136223846793005UL + n;
  return x;
}
static void work_for_a_moment() {
  double x = 0;
  for (int i = 0; i < 20000; i++) x = x * 0.5 + i;
  sink = x;
}
extern "C" void start_threads() {
  std::thread first(work_for_a_moment), second(work_for_a_moment);
  first.join();
  second.join();
}
// Leaves an address all over the stack that the next calls will use, as earlier calls of other functions do.
__attribute__((noinline)) static void litter(void* address) {
  void* volatile slots[256];
  for (auto& slot : slots) slot = address;
}
extern "C" void call_libm(double seconds, void* stale) {
  for (double end = used() + seconds; used() < end;) {
    double x = 0;
    litter(stale);
    for (int i = 0; i < 10000; i++) x += std::exp(std::sin(x + i));
    sink = x;
  }
}
"""

TRACEE = """
import ctypes, os, signal, sys, threading, time
from pathlib import Path

library = ctypes.CDLL(f"/proc/self/fd/{sys.argv[1]}")
library.spin.argtypes = [ctypes.c_double]
library.call_libm.argtypes = [ctypes.c_double, ctypes.c_void_p]
signals = []
signal.signal(signal.SIGUSR1, lambda *_: signals.append(1))

def call_libm(seconds):
    library.call_libm(seconds, ctypes.cast(ctypes.pythonapi.PyObject_Repr, ctypes.c_void_p))

def matmul(seconds):
    import torch
    torch.set_num_threads(1)
    a = torch.ones(256, 256)
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        a @ a

def python(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(i * i for i in range(1000))

def half(seconds):
    for _ in range(int(seconds / 0.004)):
        library.spin(0.002)
        matmul(0.002)

def thread(seconds):
    worker = threading.Thread(target=library.spin, args=(seconds,))
    worker.start()
    worker.join()

def moments(seconds):
    # Threads live for a moment, and the same time goes to Python; keeps which part of all time theirs was.
    begun, threads = time.process_time(), 0.0
    while time.process_time() < begun + seconds:
        before = time.process_time()
        library.start_threads()
        threads += time.process_time() - before
        sum(i * i for i in range(1000))
    Path(sys.argv[2]).write_text(str(threads / (time.process_time() - begun)))

def crowd(seconds):
    # A thread spins on the processor on which this one calculates; keeps which part of both their time it had.
    processors, spun = os.sched_getaffinity(0), []
    os.sched_setaffinity(0, {min(processors)})
    def spin():
        begun = time.thread_time()
        library.spin(seconds)
        spun.append(time.thread_time() - begun)
    other, begun = threading.Thread(target=spin), time.thread_time()
    other.start()
    while not spun:
        sum(i * i for i in range(1000))
    Path(sys.argv[2]).write_text(str(spun[0] / (spun[0] + time.thread_time() - begun)))
    other.join()
    os.sched_setaffinity(0, processors)

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
EVERYTHING, PRIVATE, FIXED, ANONYMOUS = 7, 2, 16, 32

def masked(seconds):
    code = ctypes.string_at(ctypes.cast(library.steps, ctypes.c_void_p), 256)
    place = libc.mmap(None, 4096, EVERYTHING, PRIVATE | ANONYMOUS, -1, 0)
    call = ctypes.CFUNCTYPE(ctypes.c_ulong, ctypes.c_ulong)(place)
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        libc.mmap(place, 4096, EVERYTHING, PRIVATE | ANONYMOUS | FIXED, -1, 0)
        ctypes.memmove(place, code, len(code))
        call(20_000_000)
        libc.mmap(place, 4096, EVERYTHING, PRIVATE | FIXED, int(sys.argv[1]), 0)

def leave(seconds):
    library.spin(seconds)
    os._exit(3)

def heard(seconds):
    while not signals:
        library.spin(0.01)

work = dict(spin=library.spin, call_libm=call_libm, matmul=matmul, python=python, half=half, thread=thread)
work |= dict(moments=moments, masked=masked, leave=leave, heard=heard, crowd=crowd)
for line in sys.stdin:
    name, seconds = line.split()
    work[name](float(seconds))
    print("done", flush=True)
"""

GUEST = """
import ctypes
from kernelwright.sandbox.messages import recv_message, send_message

def main(sock):
    message, (fd,) = recv_message(sock, timeout_s=None)
    library = ctypes.CDLL(f"/proc/self/fd/{fd}")
    library.spin.argtypes = [ctypes.c_double]
    while True:
        send_message(sock, {})
        message, _ = recv_message(sock, timeout_s=None)
        library.spin(message["seconds"])
"""

ORDINARY_USER = """
import ctypes, json, os, select, socket, sys, tempfile
from pathlib import Path
fd, kind, guest, sys.path[1:1] = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
from kernelwright.evaluator.cpu.share import ShareSampler
from kernelwright.sandbox import open_sandbox, recv_message, send_message

with tempfile.TemporaryDirectory() as folder:
    Path(folder, "share_guest.py").write_text(guest)
    sampler = ShareSampler(Path(folder))
    own = frozenset([(os.fstat(fd).st_dev, os.fstat(fd).st_ino)])
    with open_sandbox(kind, python_paths=[folder]) as sandbox:
        ours, theirs = socket.socketpair()
        worker = sandbox.start_worker("share_guest:main", sock=theirs)
        send_message(ours, {}, [fd])
        recv_message(ours, timeout_s=60.0)
        sampling = sampler.sampling(worker.pid, own=own, waiting=frozenset())

        def work(meanwhile):
            poll = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(meanwhile.function)
            send_message(ours, {"seconds": 0.2})
            while not select.select([ours], [], [], 0.0)[0]:
                for _ in range(1000):
                    poll(meanwhile.argument)
            recv_message(ours, timeout_s=60.0)

        sampling.over(work)
        share = sampling.result()
        print(json.dumps([share, sampling.reason, sandbox.layers]))
        worker.kill()
        ours.close()
"""


@contextlib.contextmanager
def sampled(sampler, pid, **options):
    """Samples a process while a block runs: beside it, a thread polls as whoever makes calls would."""
    sampling, begun, ended = sampler.sampling(pid, **options), threading.Event(), threading.Event()

    def poll_until_the_end(meanwhile):
        begun.set()
        if meanwhile is None:
            ended.wait()
            return
        poll = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(meanwhile.function)
        while not ended.is_set():
            poll(meanwhile.argument)

    thread = threading.Thread(target=sampling.over, args=(poll_until_the_end,))
    thread.start()
    begun.wait()
    try:
        yield sampling
    finally:
        ended.set()
        thread.join()


@pytest.fixture(scope="module")
def sampler(tmp_path_factory):
    return ShareSampler(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def product(tmp_path_factory):
    """A sealed memory file of the product, and what identifies it in a memory map."""
    path = tmp_path_factory.mktemp("product") / "product.so"
    subprocess.run(
        ["g++", "-O2", "-pthread", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)],
        input=PRODUCT.encode(),
        check=True,
    )
    fd = product_memfd(path.read_bytes())
    yield fd, frozenset([(os.fstat(fd).st_dev, os.fstat(fd).st_ino)])
    os.close(fd)


class Tracee:
    """A process that does what it is told, one piece of work at a time."""

    def __init__(self, fd, notes):
        self.notes = notes
        command = [sys.executable, "-c", TRACEE, str(fd), str(notes)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, pass_fds=[fd])
        self.pid = self.process.pid

    def begin(self, work, seconds=WORK_S):
        self.process.stdin.write(f"{work} {seconds}\n")
        self.process.stdin.flush()

    def finish(self):
        return self.process.stdout.readline()

    def has_answered(self):
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def do(self, work, seconds=WORK_S):
        self.begin(work, seconds)
        assert self.finish() == "done\n"

    def status(self, field):
        """One field of its status: the kernel's word, not its own."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(line.split()[1] for line in lines if line.startswith(f"{field}:"))

    def used(self):
        """Processor time in seconds, in steps of the kernel's clock tick."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wait_for_state(self, states):
        deadline = time.monotonic() + 30.0
        while self.status("State") not in states:
            assert time.monotonic() < deadline, f"it does not reach one of the states {states}"
            os.sched_yield()

    def close(self):
        self.process.kill()
        self.process.communicate()


def burn(seconds):
    """Let processor time pass: enough for a process that runs, though it should not, to get on."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        os.sched_yield()


@pytest.fixture(scope="module")
def shared_tracee(product, tmp_path_factory):
    """One process for most tests. It has imported torch: no test may have that among its samples."""
    tracee = Tracee(product[0], tmp_path_factory.mktemp("tracee") / "notes")
    tracee.do("matmul", 0.0)
    yield tracee
    tracee.close()


@pytest.fixture
def tracee(shared_tracee):
    """Whatever was done to it, it lives afterwards, does its work, and is not traced."""
    yield shared_tracee
    os.kill(shared_tracee.pid, signal.SIGCONT)
    assert shared_tracee.status("TracerPid") == "0"
    shared_tracee.do("spin", 0.0)


@pytest.fixture
def fresh_tracee(product, tmp_path):
    """One that may be ended."""
    tracee = Tracee(product[0], tmp_path / "notes")
    tracee.do("spin", 0.0)
    yield tracee
    tracee.close()


@pytest.fixture
def observe(sampler, product, tracee):
    """Samples one piece of work."""

    def observe_work(work, own=product[1], waiting=frozenset(), many=MANY):
        tracee.do(work, 0.0)
        for seconds in (WORK_S, 4 * WORK_S, 16 * WORK_S):  # a crowded machine gives few samples
            with sampled(sampler, tracee.pid, own=own, waiting=waiting, seed=1) as sampling:
                tracee.do(work, seconds)
            share = sampling.result()
            if share is not None and share.samples >= many:
                break
        assert sampling.reason == ""
        assert share.samples >= ENOUGH
        assert sum(share[:4]) == pytest.approx(1.0)
        return share

    return observe_work


def test_own_kernels(observe):
    assert observe("spin").own > MOST


def test_libraries_of_the_system_work_for_their_caller(observe):
    """Most samples lie in libm, where stack slots that are not in use yet hold addresses of the interpreter."""
    assert observe("call_libm").own > MOST


def test_torch(observe):
    share = observe("matmul")
    assert share.library > MOST
    assert share.own == 0.0
    assert label(share) == "library"


def test_half_and_half(observe):
    share = observe("half")
    assert 0.2 < share.own < 0.8
    assert 0.2 < share.library < 0.8
    assert label(share) == "hybrid"


def test_the_interpreter(observe):
    assert observe("python").python > MOST


def test_threads_that_start_while_it_samples(observe):
    assert observe("thread").own > MOST


def test_threads_that_live_for_a_moment(observe, tracee):
    """They and their start and end have the share that the kernel's clock says, and it is their starter's.

    It says 0.6 to 0.75; sampled only where they happen to be alive at two looks, all of it together is 0.2 at most.
    """
    share = observe("moments")
    assert share.own == pytest.approx(float(tracee.notes.read_text()), abs=0.2)
    assert share.other < 0.05


def test_a_thread_that_waits_for_a_processor_does_not_run(observe, tracee):
    """Of two threads on one processor each has the share that the kernel's clocks say it had."""
    share = observe("crowd", many=EXACT)
    luck = 3 * math.sqrt(0.25 / share.samples)
    assert share.own == pytest.approx(float(tracee.notes.read_text()), abs=0.025 + luck)


def test_waiting_does_not_count(observe, product):
    assert observe("half", own=frozenset(), waiting=product[1]).library > MOST


def test_code_that_nobody_handed_out(observe):
    assert observe("spin", own=frozenset()).other > MOST


def test_code_that_takes_the_place_of_a_product_in_between(observe):
    """After each call the product is mapped where other code has just run."""
    share = observe("masked")
    assert share.own < 0.1
    assert share.other > MOST


def test_samples_are_spaced_by_processor_time(sampler, product, tracee):
    """At least a quarter of the mean interval lies between two, however long a process had to wait for a processor."""
    before = tracee.used()
    with sampled(sampler, tracee.pid, own=product[1], waiting=frozenset(), mean_interval_us=4_000) as sampling:
        tracee.do("spin")
    assert 4 <= sampling.result().samples <= 1 + (tracee.used() - before + 0.02) / 0.001


def test_a_process_that_sleeps_has_no_share(sampler, product, tracee):
    tracee.wait_for_state("S")
    with sampled(sampler, tracee.pid, own=product[1], waiting=frozenset()) as sampling:
        tracee.wait_for_state("S")
    assert sampling.result() is None
    assert sampling.reason == "no sample was taken outside of the door"


def test_a_process_that_ends_keeps_its_exit_status(sampler, product, fresh_tracee):
    with sampled(sampler, fresh_tracee.pid, own=product[1], waiting=frozenset()) as sampling:
        fresh_tracee.begin("leave")
        assert fresh_tracee.finish() == ""
    assert sampling.result().own > MOST
    assert fresh_tracee.process.wait(30.0) == 3


def test_a_process_that_is_killed(sampler, product, fresh_tracee):
    with sampled(sampler, fresh_tracee.pid, own=product[1], waiting=frozenset()):
        fresh_tracee.begin("spin", 1000.0)
        fresh_tracee.wait_for_state("R")
        os.kill(fresh_tracee.pid, signal.SIGKILL)
    assert fresh_tracee.process.wait(30.0) == -signal.SIGKILL


def test_a_process_that_has_ended_already(sampler, fresh_tracee):
    fresh_tracee.close()
    with sampled(sampler, fresh_tracee.pid, own=frozenset(), waiting=frozenset()) as sampling:
        pass
    assert sampling.result() is None
    assert sampling.reason == "the process cannot be traced: No such process"


def test_a_stopped_process_stays_stopped(sampler, product, tracee):
    tracee.begin("spin")
    os.kill(tracee.pid, signal.SIGSTOP)
    tracee.wait_for_state("T")
    with sampled(sampler, tracee.pid, own=product[1], waiting=frozenset()) as sampling:
        pass
    assert sampling.result() is None
    tracee.wait_for_state("T")
    assert not tracee.has_answered()
    os.kill(tracee.pid, signal.SIGCONT)
    assert tracee.finish() == "done\n"


def test_a_process_that_is_stopped_and_continued_meanwhile(sampler, product, tracee):
    tracee.begin("spin")
    with sampled(sampler, tracee.pid, own=product[1], waiting=frozenset()) as sampling:
        for _ in range(5):
            os.kill(tracee.pid, signal.SIGSTOP)
            tracee.wait_for_state("Tt")
            os.kill(tracee.pid, signal.SIGCONT)
        assert tracee.finish() == "done\n"
        tracee.begin("spin", 0.2)
        os.kill(tracee.pid, signal.SIGSTOP)
        tracee.wait_for_state("Tt")
        burn(1.0)
        assert not tracee.has_answered()
    assert sampling.result().own > MOST
    tracee.wait_for_state("T")
    os.kill(tracee.pid, signal.SIGCONT)
    assert tracee.finish() == "done\n"


def test_signals_reach_a_sampled_process(sampler, product, tracee):
    with sampled(sampler, tracee.pid, own=product[1], waiting=frozenset()):
        os.kill(tracee.pid, signal.SIGUSR1)
        tracee.do("heard")


def test_a_process_that_somebody_else_traces(sampler, product, tracee):
    arguments = {"own": product[1], "waiting": frozenset()}
    with sampled(sampler, tracee.pid, **arguments), sampled(sampler, tracee.pid, **arguments) as second:
        assert tracee.status("TracerPid") != "0"
    assert second.result() is None
    assert second.reason == "the process cannot be traced: Operation not permitted"


def test_intervals_are_checked(sampler):
    for interval in (0, -1, 1_000_000):
        with pytest.raises(UsageError, match="mean_interval_us"):
            sampler.sampling(os.getpid(), own=frozenset(), waiting=frozenset(), mean_interval_us=interval)


def test_the_sampler_needs_a_compiler_once(tmp_path, monkeypatch):
    ShareSampler(tmp_path)
    monkeypatch.setenv("PATH", "")
    ShareSampler(tmp_path)
    with pytest.raises(MissingToolError, match="gcc"):
        ShareSampler(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("own", "library", "other", "expected"),
    [
        (1.0, 0.0, 0.0, "kernel"),
        (0.5, 0.0, 0.0, "kernel"),  # the rest is the interpreter's
        (OWN_AT_LEAST, 0.0, 0.0, "kernel"),
        (OWN_AT_LEAST - 0.001, 0.0, 0.0, "library"),
        (0.0, 1.0, 0.0, "library"),
        (0.9, FOREIGN_AT_MOST - 0.001, 0.0, "kernel"),
        (0.9, FOREIGN_AT_MOST + 0.001, 0.0, "hybrid"),
        (0.45, 0.06, 0.0, "hybrid"),
        (0.5, 0.0, 0.5, "hybrid"),
    ],
)
def test_labels(own, library, other, expected):
    assert label(Share(own, library, 1.0 - own - library - other, other, 1000)) == expected


# ------------------------------------------------------------------------------------------------------- in a sandbox


@contextlib.contextmanager
def sandboxed(sandbox, fd):
    ours, theirs = socket.socketpair()
    with ours:
        worker = sandbox.start_worker("share_guest:main", sock=theirs)
        send_message(ours, {}, [fd])
        recv_message(ours, timeout_s=60.0)
        yield worker, ours
        worker.kill()


def test_a_worker_in_its_sandbox(sampler, product, tmp_path):
    """Its own pid namespace, user and filter do not keep the referee out; freezing it and killing it work as ever."""
    (tmp_path / "share_guest.py").write_text(GUEST)
    tmp_path.chmod(0o755)
    fd, own = product
    with open_sandbox("auto", python_paths=[str(tmp_path)]) as sandbox:
        with sandboxed(sandbox, fd) as (worker, sock):
            with sampled(sampler, worker.pid, own=own, waiting=frozenset()) as sampling:
                send_message(sock, {"seconds": WORK_S})
                for _ in range(3):
                    worker.freeze()
                    worker.thaw()
                recv_message(sock, timeout_s=60.0)
                worker.freeze()
            assert "TracerPid:\t0\n" in Path(f"/proc/{worker.pid}/status").read_text()
            assert sampling.result().own > MOST
            worker.thaw()
            with sampled(sampler, worker.pid, own=own, waiting=frozenset()):
                send_message(sock, {"seconds": 1000.0})
                assert worker.kill() == Exit(None, signal.SIGKILL, "signal")
        with sandboxed(sandbox, fd) as (worker, sock):  # the process that forks workers is not held up
            assert worker.alive()


def ordinary_python(folders):
    """The command of a Python that runs as an ordinary user; skips where there is none."""
    if os.geteuid() != 0:
        return [sys.executable]
    if not shutil.which("setpriv") or not Path(SYSTEM_PYTHON).exists():
        pytest.skip("needs setpriv and the system's Python")
    version = subprocess.check_output([SYSTEM_PYTHON, "-c", "import sys; print(sys.version_info[:2])"], text=True)
    if version.strip() != str(sys.version_info[:2]):
        pytest.skip("the system's Python is of another version and cannot use this one's numpy")
    if not all(parent.stat().st_mode & 1 for folder in folders for parent in (folder, *folder.parents)):
        pytest.skip("another user cannot enter this checkout")
    return ["setpriv", "--reuid", "60999", "--regid", "60999", "--clear-groups", SYSTEM_PYTHON]


@pytest.mark.parametrize("kind", ["bwrap", "process"])
def test_as_an_ordinary_user(product, kind):
    """Who made the worker's user namespace may trace it. Where the suite runs as root, it becomes another user."""
    if kind == "bwrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    folders = [Path(kernelwright.__file__).parent.parent, Path(numpy.__file__).parent.parent]
    python = ordinary_python(folders)
    command = [*python, "-B", "-c", ORDINARY_USER, str(product[0]), kind, GUEST, *map(str, folders)]
    env = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, pass_fds=[product[0]], capture_output=True, text=True, cwd="/", env=env, check=False)
    assert done.returncode == 0, done.stderr
    share, reason, layers = json.loads(done.stdout)
    assert reason == ""
    assert share[0] > MOST
    assert ("namespaces:user,pid,net,ipc,uts,mount" in layers) == (kind == "bwrap")
