"""Poisoned and guarded memory for a contestant's CPU tensors. ``guarded_memory.c`` redirects torch's allocator.

The referee builds the library once and hands it to workers as a sealed memory file. A worker installs it and switches
it on around the watched calls. This module is imported inside the sandbox, so it must stay light.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

from kernelwright.evaluator.builds.referee_code import build_library
from kernelwright.sandbox import product_memfd

POISON_LIMIT_BYTES: Final = 1 << 30  # filling commits every page, which larger tensors may never touch
_MAX_TEXTS: Final = 8


class GuardLibrary:
    """The compiled ``guarded_memory.c``, built once for each cache folder and content. It loads nothing."""

    def __init__(self, cache_dir: Path) -> None:
        path = build_library(Path(__file__).with_name("guarded_memory.c"), cache_dir, ("-O2", "-pthread"))
        self.data = path.read_bytes()

    def memfd(self) -> int:
        """A sealed memory file of the library; the caller closes it."""
        return product_memfd(self.data)


class _Violation(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("past_end", "bytes", "gap", "size")]


class Guard:
    """The worker's side. Torch must have been imported. Blocks that were allocated unguarded are not touched.

    Attributes:
        reason: why :meth:`install` returned False; empty before, and if it succeeded.
    """

    def __init__(self, library_fd: int) -> None:
        """``library_fd`` must stay open: the loader knows a library by its path, so its number must not be reused."""
        self.reason = ""
        self._path = f"/proc/self/fd/{library_fd}"
        self._library: ctypes.PyDLL | None = None

    def install(self) -> bool:
        """Find torch's allocator and test whether it can be redirected; False, with ``reason``, if it cannot.

        Nothing is redirected, and nothing costs time, before the first :meth:`on`.
        """
        try:
            library = ctypes.PyDLL(self._path)
        except OSError as error:
            self.reason = f"the library cannot be loaded: {error}"
            return False
        library.kw_guard_find.restype = ctypes.c_char_p
        library.kw_guard_on.argtypes = [ctypes.c_int, ctypes.c_size_t]
        library.kw_guard_on.restype = ctypes.c_char_p
        library.kw_guard_off.restype = None
        library.kw_guard_violations.argtypes = [ctypes.c_void_p, ctypes.c_int]
        self.reason = _text(library.kw_guard_find())
        self._library = None if self.reason else library
        return not self.reason

    def on(self, byte: int, *, limit_bytes: int = POISON_LIMIT_BYTES) -> None:
        """Guard all tensor memory that is allocated from now on.

        Args:
            byte: what the memory is filled with, 0 to 255; 0xFF reads as NaN in float64, float32, float16 and
                bfloat16, and as -1 in signed integers.
            limit_bytes: larger blocks get red zones but are not filled.

        Raises:
            RuntimeError: the guard is not installed, or the allocator can no longer be redirected.
        """
        if self._library is None:
            raise RuntimeError(f"the memory guard is not installed: {self.reason or 'call install() first'}")
        failure = _text(self._library.kw_guard_on(byte, limit_bytes))
        if failure:
            raise RuntimeError(failure)

    def off(self) -> None:
        """Stop guarding new allocations. Guarded blocks stay guarded until they are freed."""
        if self._library is not None:
            self._library.kw_guard_off()

    def violations(self) -> list[str]:
        """Writes outside of guarded blocks since the start, blocks in use included; at most 8 texts."""
        if self._library is None:
            return []
        found = (_Violation * _MAX_TEXTS)()
        count = self._library.kw_guard_violations(found, _MAX_TEXTS)
        return [_describe(violation) for violation in found[:count]]


def _describe(violation: _Violation) -> str:
    side = "past the end" if violation.past_end else "before the start"
    text = f"wrote {violation.bytes} bytes {side} of a block of {violation.size} bytes"
    return f"{text}, {violation.gap} bytes away from it" if violation.gap else text


def _text(reason: bytes | None) -> str:
    return "" if reason is None else reason.decode()
