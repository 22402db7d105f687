"""User ids for sandboxes: each live sandbox has its own, so that no two can signal, trace or read one another.

An abstract unix socket with the id in its name reserves the id. The name is unique on the host (in its network
namespace) across processes, and it vanishes with its owner, however the owner dies.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from typing import Final

from kernelwright.errors import SandboxError

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
        for uid in range(FIRST_UID, FIRST_UID + _COUNT):
            lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                lock.bind(f"\0kernelwright-slot-{uid}")
            except OSError as error:
                lock.close()
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            _held[uid] = lock
            return uid
    raise SandboxError(f"all {_COUNT} sandbox user ids are taken", hint="end other kernelwright processes")


def release(uid: int | None) -> None:
    """Free a user id. Call it only after all processes of that user are gone."""
    if uid is not None:
        with _lock:
            _held.pop(uid).close()
