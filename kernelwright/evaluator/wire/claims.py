"""A worker's claims and failures. A claim is never true because the worker says so."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from kernelwright.sandbox import Exit, over_memory


class Failure(NamedTuple):
    """Why a worker did not do what it was told.

    kind: ``fault`` (its code raised), ``died`` (crash, kill, limit), ``timeout``, ``protocol`` (a malformed message).
    """

    kind: Literal["fault", "died", "timeout", "protocol"]
    phase: str
    message: str
    line: int | None = None
    exit: Exit | None = None


class WorkerFailed(Exception):
    """Carries a :class:`Failure` and the worker's name; never leaves the evaluator."""

    def __init__(self, failure: Failure, worker: str) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.worker = worker


def readable(text: object) -> str:
    """Hostile text made safe to store and show: no lone surrogates, no control characters except line ends."""
    clean = str(text).encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() or c == "\n" else " " for c in clean)


def describe_exit(exit_: Exit) -> str:
    """The cause of a worker's end, in words."""
    needs, _ = over_memory(exit_.memory_bytes)
    reasons = {
        "oom": f"killed: it {needs}",
        "timeout": "killed: it ran over its time limit",
        "output": "killed: it printed more than its output limit",
    }
    if exit_.reason in reasons:
        return reasons[exit_.reason]
    if exit_.signal is not None:
        names = {11: "segmentation fault", 6: "abort", 4: "illegal instruction", 7: "bus error", 8: "arithmetic error"}
        names |= {9: "killed", 31: "forbidden system call"}
        return f"crashed: {names.get(exit_.signal, 'signal')} (signal {exit_.signal})"
    return f"ended by itself with exit code {exit_.returncode}"


class OutputClaim:
    """One output as the worker described it, with the bytes that the referee read at the claimed address.

    Attributes:
        dtype: None for a dtype that is not supported.
    """

    def __init__(
        self, address: int, dtype: str | None, shape: tuple[int, ...], stride: tuple[int, ...], data: np.ndarray
    ) -> None:
        """``data``: uint8."""
        self.address = address
        self.dtype = dtype
        self.shape = shape
        self.stride = stride
        self._data = data

    @property
    def size(self) -> int:
        """Bytes from its first to its last element."""
        return self._data.size

    @property
    def data(self) -> np.ndarray:
        """(size,) uint8."""
        return self._data
