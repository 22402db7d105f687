"""Runs untrusted programs under limits, in bubblewrap by default or in containers.

Warm workers are forked from a process that has imported torch. The names load on first use: this package is also
imported inside every sandbox, where milliseconds count.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelwright.sandbox._open import describe_host, open_sandbox, self_test
    from kernelwright.sandbox._types import (
        Completed,
        Exit,
        Limits,
        Mount,
        Probe,
        Sandbox,
        Worker,
        WorkerFailed,
        over_memory,
    )
    from kernelwright.sandbox._view import driver_environment
    from kernelwright.sandbox.memory import SharedMemory, product_memfd
    from kernelwright.sandbox.messages import (
        PeerClosed,
        PeerTimeout,
        ProtocolError,
        recv_message,
        send_message,
    )

__all__ = [
    "Completed",
    "Exit",
    "Limits",
    "Mount",
    "PeerClosed",
    "PeerTimeout",
    "Probe",
    "ProtocolError",
    "Sandbox",
    "SharedMemory",
    "Worker",
    "WorkerFailed",
    "describe_host",
    "driver_environment",
    "open_sandbox",
    "over_memory",
    "product_memfd",
    "recv_message",
    "self_test",
    "send_message",
]

_HOMES = {
    "_open": ("describe_host", "open_sandbox", "self_test"),
    "_types": ("Completed", "Exit", "Limits", "Mount", "Probe", "Sandbox", "Worker", "WorkerFailed", "over_memory"),
    "_view": ("driver_environment",),
    "memory": ("SharedMemory", "product_memfd"),
    "messages": ("PeerClosed", "PeerTimeout", "ProtocolError", "recv_message", "send_message"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
