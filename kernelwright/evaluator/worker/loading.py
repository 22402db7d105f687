"""Runs a candidate's file, and turns its exceptions into faults."""

from __future__ import annotations

import contextlib
import linecache
import sys
import traceback
import types
from collections.abc import Iterator

_TEXT_LIMIT = 2000


class Fault(Exception):
    """A fault of the loaded code. It goes to the referee as an error message."""

    def __init__(self, phase: str, kind: str, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.phase, self.kind, self.message, self.line = phase, kind, message[:_TEXT_LIMIT], line


def load_candidate(source: str) -> types.ModuleType:
    """Execute a candidate file (with its knobs already set in the text) as a module with readable tracebacks."""
    filename, name = "<candidate>", "kernelwright_candidate"
    module = types.ModuleType(name)
    module.__file__ = filename
    sys.modules[name] = module
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec", dont_inherit=True), vars(module))
    return module


def fault_line(error: BaseException, filename: str) -> int | None:
    """The last line inside ``filename`` that the error's traceback passes through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == filename]
    if not lines and isinstance(error, SyntaxError):
        return error.lineno
    return lines[-1] if lines else None


@contextlib.contextmanager
def blamed(phase: str, filename: str) -> Iterator[None]:
    """Turn any exception of the loaded code into a Fault: a process boundary."""
    try:
        yield
    except Fault:
        raise
    except BaseException as error:  # noqa: BLE001 - untrusted code may raise anything, SystemExit included
        kind = type(error).__name__
        raise Fault(phase, kind, f"{kind}: {error}", fault_line(error, filename)) from None
