"""The seccomp programs, run through a small interpreter of classic BPF: no other way to test another architecture's.

This test knows a private module, for want of a face: what the filters do on this architecture is tested from outside.
"""

from __future__ import annotations

import errno
import struct

import pytest

from kernelwright.sandbox import _seccomp

ALLOW = 0x7FFF0000
KILL = 0x80000000
EPERM = 0x00050000 | errno.EPERM
ENOSYS = 0x00050000 | errno.ENOSYS
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# From the kernel's own tables (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h).
CALLS = {
    "x86_64": {"read": 0, "mount": 165, "socket": 41, "socketpair": 53, "clone": 56, "execve": 59, "fork": 57}
    | {"ioctl": 16, "prctl": 157, "fcntl": 72, "sched_setaffinity": 203, "futex": 202, "ptrace": 101},
    "aarch64": {"read": 63, "mount": 40, "socket": 198, "socketpair": 199, "clone": 220, "execve": 221}
    | {"ioctl": 29, "prctl": 167, "fcntl": 25, "sched_setaffinity": 122, "futex": 98, "ptrace": 117},
}
THREAD = 0x003D0F00  # what glibc's pthread_create passes to clone
FORK = 0x01200011
NEWUSER = 0x10000000


def decide(level, machine, number, *arguments, arch=None):
    """What the kernel would answer to a call."""
    program = _seccomp.assemble(level, machine)
    values = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("<iIQ6Q", number, ARCH[machine] if arch is None else arch, 0, *values)
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, constant = struct.unpack_from("<HBBI", program, at * 8)
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, constant)
        elif code == 0x06:
            return constant
        else:
            holds = {0x15: accumulator == constant, 0x25: accumulator > constant, 0x45: bool(accumulator & constant)}
            at += if_true if holds[code] else if_false


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize(
    ("call", "arguments", "base", "offline", "contestant"),
    [
        ("read", (), ALLOW, ALLOW, ALLOW),
        ("futex", (), ALLOW, ALLOW, ALLOW),
        ("mount", (), EPERM, EPERM, EPERM),
        ("ptrace", (), EPERM, EPERM, EPERM),
        ("socket", (1,), ALLOW, EPERM, EPERM),
        ("socket", (2,), EPERM, EPERM, EPERM),
        ("socket", (16,), EPERM, EPERM, EPERM),
        ("socketpair", (1,), ALLOW, ALLOW, ALLOW),
        ("execve", (), ALLOW, ALLOW, EPERM),
        ("sched_setaffinity", (), ALLOW, ALLOW, EPERM),
        ("clone", (THREAD,), ALLOW, ALLOW, ALLOW),
        ("clone", (FORK,), ALLOW, ALLOW, EPERM),
        ("clone", (FORK | NEWUSER,), EPERM, EPERM, EPERM),
        ("clone", (THREAD | NEWUSER,), EPERM, EPERM, EPERM),
        ("ioctl", (0, 0x5401), ALLOW, ALLOW, ALLOW),
        ("ioctl", (0, 0x5412), EPERM, EPERM, EPERM),
        ("prctl", (15,), ALLOW, ALLOW, ALLOW),
        ("prctl", (1,), EPERM, EPERM, EPERM),
        ("prctl", (4,), ALLOW, ALLOW, EPERM),
        ("fcntl", (0, 4), ALLOW, ALLOW, ALLOW),
        ("fcntl", (0, 10), ALLOW, ALLOW, EPERM),
    ],
)
def test_decisions(machine, call, arguments, base, offline, contestant):
    number = CALLS[machine][call]
    decisions = [decide(level, machine, number, *arguments) for level in ("base", "offline", "contestant")]
    assert decisions == [base, offline, contestant]


@pytest.mark.parametrize("level", ["base", "offline", "contestant"])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_calls_that_a_filter_cannot_see_through_do_not_exist(level, machine):
    assert decide(level, machine, 435) == ENOSYS  # clone3 passes its flags in memory
    assert decide(level, machine, 463) == ENOSYS  # later than our tables
    assert decide(level, machine, 0x40000000 | 59) == ENOSYS  # the x32 way to call


@pytest.mark.parametrize("level", ["base", "offline", "contestant"])
def test_another_architectures_calls_kill(level):
    assert decide(level, "x86_64", 0, arch=0x40000003) == KILL


def test_processes_cannot_be_made_in_the_old_way():
    assert decide("contestant", "x86_64", CALLS["x86_64"]["fork"]) == EPERM
    assert decide("base", "x86_64", CALLS["x86_64"]["fork"]) == ALLOW


def test_an_unknown_architecture_fails_closed():
    with pytest.raises(NotImplementedError):
        _seccomp.assemble("base", "riscv64")
