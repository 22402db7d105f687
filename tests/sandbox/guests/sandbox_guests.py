"""What the tests run inside sandboxes: well-behaved workers and hostile ones. No third-party imports at the top."""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import threading

from kernelwright.sandbox.messages import recv_message, send_message

_X86 = platform.machine() == "x86_64"
_TIMER_CREATE, _PERF, _USERFAULTFD, _EXIT = (222, 298, 323, 60) if _X86 else (107, 241, 282, 93)
_MUCH = 1 << 30


def echo(sock):
    """Send every message back until the other end closes."""
    while True:
        message, fds = recv_message(sock, timeout_s=None)
        send_message(sock, message, fds)
        for fd in fds:
            os.close(fd)


def report(sock):
    """Tell what a worker sees of itself."""
    send_message(sock, look({}))
    recv_message(sock, timeout_s=None)


def look(payload):
    return {
        "uid": os.getuid(),
        "cwd": os.getcwd(),
        "env": dict(os.environ),
        "affinity": sorted(os.sched_getaffinity(0)),
        "fds": sorted(os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in range(64) if _is_open(fd)),
        "root": _list("/"),
        "home": _list("/root"),
        "scratch": _scratch(),
        "torch_loaded": "torch" in sys.modules,
        "ours": sorted(name for name in sys.modules if name.startswith("kernelwright.")),
        "payload": payload,
    }


def _scratch():
    """Where a temporary file was made, without a name."""
    with tempfile.TemporaryFile() as file:
        file.write(b"kept for now")
    return tempfile.gettempdir()


def forbidden(payload):
    """Every call that a loaded kernel has no use for; returns the ones that the kernel let through."""
    libc = ctypes.CDLL(None, use_errno=True)
    attempts = {
        "fork": os.fork,
        "exec": lambda: os.execv("/bin/true", ["true"]),
        "spawn": lambda: subprocess.run(["/bin/true"], check=True),
        "socket": lambda: socket.socket(socket.AF_UNIX),
        "affinity": lambda: os.sched_setaffinity(0, [0]),
        "scheduler": lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)),
        "nice": lambda: os.setpriority(os.PRIO_PROCESS, 0, 1),
        "continue by descriptor": lambda: __import__("fcntl").fcntl(0, 10, signal.SIGCONT),
        "continue by timer": lambda: _check(libc.syscall(_TIMER_CREATE, 1, None, ctypes.create_string_buffer(8))),
        "undumpable": lambda: _check(libc.prctl(4, 0, 0, 0, 0)),
        "outlive parent": lambda: _check(libc.prctl(1, 0, 0, 0, 0)),
        "ptrace": lambda: _check(libc.ptrace(0, 0, None, None)),
        "secret memory": lambda: _check(libc.syscall(447, 0)),
        "user namespace": lambda: _check(libc.unshare(0x10000000)),
        "io_uring": lambda: _check(libc.syscall(425, 8, ctypes.create_string_buffer(128))),
        "perf": lambda: _check(libc.syscall(_PERF, ctypes.create_string_buffer(128), 0, -1, -1, 0)),
        "userfaultfd": lambda: _check(libc.syscall(_USERFAULTFD, 0)),
        "clone3": lambda: _check_unless(libc.syscall(435, None, 0), errno.ENOSYS),
    }
    passed = []
    for name, attempt in attempts.items():
        try:
            attempt()
        except (OSError, subprocess.SubprocessError):
            continue
        passed.append(name)
    return {"passed": passed}


def compute(payload):
    """A multiplication in torch, with threads where it has some."""
    import torch

    a = torch.ones(256, 256)
    return {"sum": float((a @ a).sum()), "threads": torch.get_num_threads()}


def count(sock):
    """Increase a counter in shared memory for ever, on two threads."""
    _, (fd,) = recv_message(sock, timeout_s=None)
    memory = mmap.mmap(fd, 4096)
    view = memoryview(memory).cast("Q")

    def spin(slot):
        while True:
            view[slot] += 1

    threading.Thread(target=spin, args=(1,), daemon=True).start()
    send_message(sock, {"ready": True})
    spin(0)


def run_program(sock):
    done = subprocess.run(["/bin/echo", "ran"], capture_output=True, text=True, check=True)
    send_message(sock, {"said": done.stdout})


def read_data(sock):
    with open("/data/here/data") as file:
        data = file.read()
    try:
        open("/data/here/new", "w").close()
        written = True
    except OSError:
        written = False
    send_message(sock, {"data": data, "written": written})


def allocate(sock):
    hoard = []
    while True:
        hoard.append(b"x" * (64 << 20))


def allocate_shared(sock):
    hoard = []
    while True:
        hoard.append(mmap.mmap(-1, 32 << 20))
        hoard[-1].write(b"x" * (32 << 20))


def fill_memory_files(sock):
    """Memory in files that are open and never mapped."""
    size = 32 << 20
    for _ in range(_MUCH // size):
        os.posix_fallocate(os.memfd_create("hoard"), 0, size)
    signal.pause()


def fill_memory_files_without_a_first_thread(sock):
    """The same in a process whose directory in /proc shows nothing, since its first thread has ended."""
    threading.Thread(target=fill_memory_files, args=(sock,)).start()
    ctypes.CDLL(None).syscall(_EXIT, 0)


def fill_page_tables(sock):
    """One page of zeros, seen through a great many addresses."""
    covered = 2 << 20
    pages = mmap.mmap(-1, _MUCH // mmap.PAGESIZE * covered, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
    pages.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, len(pages), covered):
        pages[at]
    signal.pause()


def fill_one_memory_file(sock):
    """200 MiB in one file that is open under many numbers."""
    file = os.memfd_create("mine")
    os.posix_fallocate(file, 0, 200 << 20)
    copies = [os.dup(file) for _ in range(16)]
    send_message(sock, {"copies": len(copies)})
    signal.pause()


def keep(sock):
    """Hold what is handed in."""
    _, fds = recv_message(sock, timeout_s=None)
    send_message(sock, {"bytes": sum(os.fstat(fd).st_size for fd in fds)})
    signal.pause()


def chatter(sock):
    while True:
        os.write(1, b"spam" * 4096)


def hang(sock):
    for number in set(range(1, signal.NSIG)) - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            continue
    while True:
        signal.pause()


def leave(sock):
    sys.exit(7)


def finish(sock):
    print("done")


def crash(sock):
    ctypes.string_at(0)


def stumble(sock):
    raise RuntimeError("lost")


def fork_daemons(sock):
    """Leave processes behind that have left the session and the parent."""
    for _ in range(4):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                while True:
                    signal.pause()
            os._exit(0)
        os.wait()
    send_message(sock, {"ready": True})
    recv_message(sock, timeout_s=None)


# ------------------------------------------------------------------------------------------ functions for call()


def double(payload):
    print("noise on standard output")
    return {"value": 2 * payload["value"]}


def refuse(payload):
    raise ValueError("no such thing")


def not_an_object(payload):
    return [1, 2, 3]


def infinite(payload):
    return {"value": float("inf")}


def large(payload):
    return {"value": "x" * payload["size"]}


def deep(payload):
    value = 1
    for _ in range(payload["depth"]):
        value = [value]
    return {"value": value}


def forge(payload):
    """Answer past the harness, with bytes that are no message."""
    for fd in range(3, 32):
        if _is_open(fd) and os.readlink(f"/proc/self/fd/{fd}").startswith("socket"):
            os.write(fd, bytes.fromhex(payload["bytes"]))
    os._exit(0)


def smuggle(payload):
    """Answer with descriptors that nobody asked for."""
    body = json.dumps({"result": {}}).encode()
    for fd in range(3, 32):
        if _is_open(fd) and os.readlink(f"/proc/self/fd/{fd}").startswith("socket"):
            with socket.socket(fileno=os.dup(fd)) as sock:
                socket.send_fds(sock, [len(body).to_bytes(4, "big") + body], [1, 2])
    os._exit(0)


def spin_forever(payload):
    while True:
        pass


def abort(payload):
    os.abort()


def hoard(payload):
    allocate(None)


def babble(payload):
    chatter(None)


# ------------------------------------------------------------------------------------------ helpers


def _is_open(fd):
    return os.path.lexists(f"/proc/self/fd/{fd}")


def _list(path):
    try:
        return sorted(os.listdir(path))
    except OSError:
        return None


def _check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")


def _check_unless(result, expected):
    if result < 0 and ctypes.get_errno() == expected:
        raise OSError(expected, "refused as wanted")
