"""User ids for sandboxes: each live sandbox has its own, so that no two can signal, trace or read one another.

An abstract unix socket with the id in its name reserves the id. The name is unique in the host's network namespace
across processes, and it vanishes with its owner, however the owner dies.

Another network namespace, as containers have one, does not see these names. Processes there begin to look at another
id, and no id is taken under which anything runs. A sandbox ends all processes of its user, so ids must not be shared.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from typing import Final

from kernelwright.errors import SandboxError
from kernelwright.sandbox import _tasks

FIRST_UID: Final = 61010
_COUNT: Final = 990
_lock = threading.Lock()
_held: dict[int, socket.socket] = {}


def acquire() -> int | None:
    """Reserve a free user id. Returns None if this process is not root and so cannot change users.

    Raises:
        SandboxError: all ids are taken.
    """
    if os.geteuid() != 0:
        return None
    with _lock:
        begin = _namespace() % _COUNT
        for number in range(_COUNT):
            uid = FIRST_UID + (begin + number) % _COUNT
            lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                lock.bind(f"\0kernelwright-slot-{uid}")
            except OSError as error:
                lock.close()
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            if _tasks.owned_by(uid):
                lock.close()
                continue
            _held[uid] = lock
            return uid
    raise SandboxError(f"all {_COUNT} sandbox user ids are taken", hint="end other kernelwright processes")


def _namespace() -> int:
    """A number of this process's network namespace; 0 if /proc does not tell."""
    try:
        return os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return 0


def release(uid: int | None) -> None:
    """Free a user id. Call it only after all processes of that user are gone."""
    if uid is not None:
        with _lock:
            _held.pop(uid).close()
