"""Seccomp filters, assembled by hand (classic BPF, ``seccomp(2)``): no library is needed inside the sandbox.

``base`` refuses calls that no program under test needs and that have broken sandboxes before: namespaces and mounts,
tracing, kernel interfaces with a history of holes, and every socket family except AF_UNIX. ``offline`` refuses AF_UNIX
too; it is for programs without a network namespace. ``contestant`` also refuses calls that an already loaded kernel
does not need: new programs and processes, scheduling, sockets, and ways to wake up while stopped (a timer or descriptor
that sends SIGCONT ends a SIGSTOP). Container engines take the same lists as JSON.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import struct
from typing import Any, Final, Literal, NamedTuple

from kernelwright.sandbox import _system_calls

FilterLevel = Literal["base", "offline", "contestant"]


class _Call(NamedTuple):
    """A system call: its numbers (None if an architecture lacks it) and the lowest level that refuses it.

    If the level is None, only some arguments of the call are refused.
    """

    x86_64: int | None
    aarch64: int | None
    level: FilterLevel | None


_CALLS: Final = {
    "accept": _Call(43, 202, "contestant"),
    "accept4": _Call(288, 242, "contestant"),
    "acct": _Call(163, 89, "base"),
    "add_key": _Call(248, 217, "base"),
    "adjtimex": _Call(159, 171, "base"),
    "bind": _Call(49, 200, "contestant"),
    "bpf": _Call(321, 280, "base"),
    "chroot": _Call(161, 51, "base"),
    "clock_adjtime": _Call(305, 266, "base"),
    "clock_settime": _Call(227, 112, "base"),
    "clone": _Call(56, 220, None),
    "clone3": _Call(435, 435, None),
    "connect": _Call(42, 203, "contestant"),
    "delete_module": _Call(176, 106, "base"),
    "execve": _Call(59, 221, "contestant"),
    "execveat": _Call(322, 281, "contestant"),
    "fanotify_init": _Call(300, 262, "base"),
    "fcntl": _Call(72, 25, None),
    "finit_module": _Call(313, 273, "base"),
    "fork": _Call(57, None, "contestant"),
    "fsconfig": _Call(431, 431, "base"),
    "fsmount": _Call(432, 432, "base"),
    "fsopen": _Call(430, 430, "base"),
    "fspick": _Call(433, 433, "base"),
    "init_module": _Call(175, 105, "base"),
    "io_setup": _Call(206, 0, "base"),
    "io_uring_enter": _Call(426, 426, "base"),
    "io_uring_register": _Call(427, 427, "base"),
    "io_uring_setup": _Call(425, 425, "base"),
    "ioctl": _Call(16, 29, None),
    "ioperm": _Call(173, None, "base"),
    "iopl": _Call(172, None, "base"),
    "ioprio_set": _Call(251, 30, "contestant"),
    "kcmp": _Call(312, 272, "base"),
    "kexec_file_load": _Call(320, 294, "base"),
    "kexec_load": _Call(246, 104, "base"),
    "keyctl": _Call(250, 219, "base"),
    "listen": _Call(50, 201, "contestant"),
    "lookup_dcookie": _Call(212, 18, "base"),
    "membarrier": _Call(324, 283, "contestant"),
    "memfd_secret": _Call(447, 447, "base"),
    "migrate_pages": _Call(256, 238, "base"),
    "mknod": _Call(133, None, "base"),
    "mknodat": _Call(259, 33, "base"),
    "modify_ldt": _Call(154, None, "base"),
    "mount": _Call(165, 40, "base"),
    "mount_setattr": _Call(442, 442, "base"),
    "move_mount": _Call(429, 429, "base"),
    "move_pages": _Call(279, 239, "base"),
    "mq_notify": _Call(244, 184, "contestant"),
    "mq_open": _Call(240, 180, "contestant"),
    "msgget": _Call(68, 186, "contestant"),
    "name_to_handle_at": _Call(303, 264, "base"),
    "nfsservctl": _Call(180, 42, "base"),
    "open_by_handle_at": _Call(304, 265, "base"),
    "open_tree": _Call(428, 428, "base"),
    "perf_event_open": _Call(298, 241, "base"),
    "personality": _Call(135, 92, "base"),
    "pidfd_getfd": _Call(438, 438, "base"),
    "pidfd_open": _Call(434, 434, "contestant"),
    "pidfd_send_signal": _Call(424, 424, "contestant"),
    "pivot_root": _Call(155, 41, "base"),
    "prctl": _Call(157, 167, None),
    "prlimit64": _Call(302, 261, None),
    "process_madvise": _Call(440, 440, "base"),
    "process_mrelease": _Call(448, 448, "base"),
    "process_vm_readv": _Call(310, 270, "base"),
    "process_vm_writev": _Call(311, 271, "base"),
    "ptrace": _Call(101, 117, "base"),
    "quotactl": _Call(179, 60, "base"),
    "quotactl_fd": _Call(443, 443, "base"),
    "reboot": _Call(169, 142, "base"),
    "request_key": _Call(249, 218, "base"),
    "sched_setaffinity": _Call(203, 122, "contestant"),
    "sched_setattr": _Call(314, 274, "contestant"),
    "sched_setparam": _Call(142, 118, "contestant"),
    "sched_setscheduler": _Call(144, 119, "contestant"),
    "seccomp": _Call(317, 277, "contestant"),
    "semget": _Call(64, 190, "contestant"),
    "setdomainname": _Call(171, 162, "base"),
    "sethostname": _Call(170, 161, "base"),
    "setns": _Call(308, 268, "base"),
    "setpriority": _Call(141, 140, "contestant"),
    "settimeofday": _Call(164, 170, "base"),
    "shmget": _Call(29, 194, "contestant"),
    "socket": _Call(41, 198, "contestant"),
    "swapoff": _Call(168, 225, "base"),
    "swapon": _Call(167, 224, "base"),
    "sync": _Call(162, 81, "base"),
    "syncfs": _Call(306, 267, "base"),
    "syslog": _Call(103, 116, "base"),
    "timer_create": _Call(222, 107, "contestant"),
    "timerfd_create": _Call(283, 85, "contestant"),
    "umount2": _Call(166, 39, "base"),
    "unshare": _Call(272, 97, "base"),
    "uselib": _Call(134, None, "base"),
    "userfaultfd": _Call(323, 282, "base"),
    "vfork": _Call(58, None, "contestant"),
    "vhangup": _Call(153, 58, "base"),
    "vmsplice": _Call(278, 75, "base"),
}


_LAST_KNOWN: Final = 462  # mseal (6.10): calls that later kernels add do not exist inside
_AUDIT_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ALLOW: Final = 0x7FFF0000
_KILL_PROCESS: Final = 0x80000000
_ERRNO: Final = 0x00050000

_LOAD: Final = 0x20  # ld  [k]
_EQUAL: Final = 0x15  # jeq #k
_GREATER: Final = 0x25  # jgt #k
_ANY_BIT: Final = 0x45  # jset #k
_RETURN: Final = 0x06  # ret #k

_CLONE_THREAD: Final = 0x00010000
_CLONE_NEW_ANY: Final = 0x7E020000  # every CLONE_NEW* of clone(2)
_AF_UNIX: Final = 1
_OWN_PROCESS: Final = 0
_TERMINAL_TRICKS: Final = (0x5412, 0x541C, 0x540E, 0x40045436)  # TIOCSTI, TIOCLINUX, TIOCSCTTY, TIOCSIG
_F_SETSIG: Final = 10
_FLAG_TSYNC: Final = 1
_FLAG_SPEC_ALLOW: Final = 4
_SET_MODE_FILTER: Final = 1

# Without clone3, glibc falls back to clone. A filter can see clone's flags; clone3 passes its flags in memory.
_ABSENT: Final = ("clone3",)

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant
_Test = Literal["any bit", "no bit", "is", "is not"]


class _Rule(NamedTuple):
    """The refused values of one argument of a call."""

    argument: int
    refused: tuple[tuple[_Test, int], ...]


@functools.cache
def assemble(level: FilterLevel, machine: str | None = None) -> bytes:
    """The BPF program of a level for an architecture (default: this one).

    Raises:
        NotImplementedError: there is no system call table for the architecture.
    """
    machine = machine or _system_calls.machine()
    if machine not in _AUDIT_ARCH:
        raise NotImplementedError(f"no seccomp table for {machine}")
    program: list[Instruction] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, 0),
        (_GREATER, 0, 1, _LAST_KNOWN),  # the x32 calls of x86_64 have higher numbers, too
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    for name in _CALLS:
        number = _number(name, machine)
        if number is not None and _refused(name, level):
            program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    for name in _ABSENT:
        number = _number(name, machine)
        assert number is not None
        program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    for name, rule in _rules(level).items():
        number = _number(name, machine)
        assert number is not None
        body = _instructions(rule)
        program += [(_EQUAL, 0, len(body), number), *body]
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def install(level: FilterLevel) -> None:
    """Install the filter in this process irrevocably. Needs ``no_new_privs`` (or CAP_SYS_ADMIN).

    ``SPEC_ALLOW`` keeps the processor's store bypass on. Kernels before 5.16 would otherwise slow down every sandboxed
    program, and times measured inside would differ from those outside.
    """
    program = assemble(level)
    length = len(program) // 8
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", length, ctypes.addressof(code))
    number = _number("seccomp", _system_calls.machine())
    assert number is not None
    try:
        _system_calls.syscall(number, _SET_MODE_FILTER, _FLAG_TSYNC | _FLAG_SPEC_ALLOW, header, what="seccomp")
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        _system_calls.syscall(
            number, _SET_MODE_FILTER, _FLAG_TSYNC, header, what="seccomp"
        )  # gVisor knows no SPEC_ALLOW


def container_profile(level: FilterLevel = "base", machine: str | None = None) -> dict[str, Any]:
    """A level in the JSON form that container engines take, for an architecture (default: this one).

    The form cannot express that calls of later kernels do not exist; the program's own filter handles those.

    Raises:
        NotImplementedError: there is no system call table for the architecture.
    """
    machine = machine or _system_calls.machine()
    if machine not in _AUDIT_ARCH:
        raise NotImplementedError(f"no seccomp table for {machine}")
    names = [name for name in _CALLS if _number(name, machine) is not None]
    refusals: list[dict[str, Any]] = [{"names": [name for name in names if _refused(name, level)]}]
    for name, rule in _rules(level).items():
        for test, value in rule.refused:
            refusals += [{"names": [name], "args": [arg]} for arg in _engine_arguments(rule.argument, test, value)]
    syscalls = [{**refusal, "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM} for refusal in refusals]
    absent = {"names": sorted(_ABSENT), "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS}
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [f"SCMP_ARCH_{machine.upper()}"],
        "syscalls": [*syscalls, absent],
    }


def _number(name: str, machine: str) -> int | None:
    call = _CALLS[name]
    return call.x86_64 if machine == "x86_64" else call.aarch64


def _refused(name: str, level: FilterLevel) -> bool:
    """Whether a level refuses a call with any arguments."""
    own = _CALLS[name].level
    return own == "base" or (own is not None and own == level) or (name == "socket" and level == "offline")


def _rules(level: FilterLevel) -> dict[str, _Rule]:
    """The calls for which a level refuses some arguments."""
    clone: list[tuple[_Test, int]] = [("any bit", _CLONE_NEW_ANY)]
    options = [_system_calls.PR_SET_PDEATHSIG]
    if level == "contestant":
        clone.append(("no bit", _CLONE_THREAD))
        options += [_system_calls.PR_SET_DUMPABLE, _system_calls.PR_SET_SECCOMP]
    rules = {
        "clone": _Rule(0, tuple(clone)),
        "ioctl": _Rule(1, tuple(("is", request) for request in _TERMINAL_TRICKS)),
        "prctl": _Rule(0, tuple(("is", option) for option in options)),
        "prlimit64": _Rule(0, (("is not", _OWN_PROCESS),)),
    }
    if level == "base":
        rules["socket"] = _Rule(0, (("is not", _AF_UNIX),))
    if level == "contestant":
        rules["fcntl"] = _Rule(1, (("is", _F_SETSIG),))
    return rules


def _instructions(rule: _Rule) -> list[Instruction]:
    """A rule as BPF. The low 32 bits of the argument (little-endian) decide; a call that is not refused is allowed."""
    body: list[Instruction] = [(_LOAD, 0, 0, 16 + 8 * rule.argument)]
    for test, value in rule.refused:
        code = _ANY_BIT if test in ("any bit", "no bit") else _EQUAL
        jumps = (1, 0) if test in ("no bit", "is not") else (0, 1)
        body += [(code, *jumps, value), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    return [*body, (_RETURN, 0, 0, _ALLOW)]


def _engine_arguments(index: int, test: _Test, value: int) -> list[dict[str, Any]]:
    """A test as an engine's argument conditions, one for each way in which the test can hold.

    Engines compare 64 bits, but the kernel looks at 32. So equality is masked: a set high bit would evade it.
    """
    if test == "any bit":
        bits = [1 << k for k in range(32) if value >> k & 1]
        return [{"index": index, "value": bit, "valueTwo": bit, "op": "SCMP_CMP_MASKED_EQ"} for bit in bits]
    if test == "no bit":
        return [{"index": index, "value": value, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]
    if test == "is":
        return [{"index": index, "value": 0xFFFFFFFF, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}]
    return [{"index": index, "value": value, "op": "SCMP_CMP_NE"}]
