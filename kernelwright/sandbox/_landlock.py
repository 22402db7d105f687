"""Landlock, the second fence around files: an access list that a process applies to itself for good, without root."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Sequence
from typing import Final

from kernelwright.sandbox import _system_calls

_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_VERSION_FLAG: Final = 1
_RULE_PATH_BENEATH: Final = 1

_EXECUTE: Final = 1 << 0
_WRITE_FILE: Final = 1 << 1
_READ_FILE: Final = 1 << 2
_READ_DIR: Final = 1 << 3
_REFER: Final = 1 << 13  # ABI 2
_TRUNCATE: Final = 1 << 14  # ABI 3
_IOCTL_DEV: Final = 1 << 15  # ABI 5
_ALL_OF_ABI_1: Final = (1 << 13) - 1
_READ: Final = _EXECUTE | _READ_FILE | _READ_DIR
_FOR_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_NET_TCP: Final = 0b11  # bind, connect; ABI 4
_SCOPES: Final = 0b11  # abstract unix sockets, signals; ABI 6


def abi() -> int:
    """The kernel's Landlock version; 0 if it has none."""
    try:
        return _system_calls.syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG, what="landlock_create_ruleset")
    except OSError:
        return 0


def restrict(readable: Sequence[str], writable: Sequence[str]) -> int:
    """Allow reading and executing below ``readable``, everything below ``writable``, and no TCP. Returns the ABI used.

    Paths that do not exist are skipped. Needs ``no_new_privs``. Returns 0 if the kernel has no Landlock.
    """
    version = abi()
    if version == 0:
        return 0
    handled = _ALL_OF_ABI_1
    handled |= _REFER if version >= 2 else 0
    handled |= _TRUNCATE if version >= 3 else 0
    handled |= _IOCTL_DEV if version >= 5 else 0
    fields = [handled]
    fields += [_NET_TCP] if version >= 4 else []
    fields += [_SCOPES] if version >= 6 else []
    attributes = struct.pack(f"{len(fields)}Q", *fields)
    ruleset = _system_calls.syscall(_CREATE_RULESET, attributes, len(attributes), 0, what="landlock_create_ruleset")
    try:
        for path in readable:
            _allow(ruleset, path, _READ)
        for path in writable:
            _allow(ruleset, path, handled)
        _system_calls.syscall(_RESTRICT_SELF, ruleset, 0, what="landlock_restrict_self")
    finally:
        os.close(ruleset)
    return version


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= _FOR_FILES
        rule = ctypes.create_string_buffer(struct.pack("=Qi", access, fd), 12)
        _system_calls.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0, what=f"landlock_add_rule {path}")
    finally:
        os.close(fd)
