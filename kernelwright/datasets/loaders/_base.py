"""What a loader is: it knows one layout of folders, lists the problems in it, and writes each as a problem file.

A problem of somebody else's suite becomes a :class:`Problem` whose source is their text, unchanged, and behind it what
it lacks of the contract. Nothing of it is executed here, and their files are only read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kernelwright.datasets._contract import parse_problem
from kernelwright.errors import InvalidReferenceError, UsageError
from kernelwright.records import Problem

MAX_FILE_BYTES = 32_000_000


class Entry(NamedTuple):
    """One problem of a suite, not yet read.

    ``group`` is the middle part of its id: ``level1``, or a category. ``write`` makes the text of a problem file from
    what lies at ``path``; it raises :class:`InvalidReferenceError` or :class:`UsageError`.
    """

    suite: str
    group: str
    level: int
    number: int | None
    name: str
    path: Path
    write: Callable[[Path], str]

    @property
    def id(self) -> str:
        return f"{self.suite}/{self.group}/{self.name}"

    def read(self) -> Problem:
        """The problem.

        Raises:
            InvalidReferenceError: it breaks the contract, or its layout's.
            UsageError: a file cannot be read as text.
        """
        return parse_problem(
            self.write(self.path),
            id=self.id,
            suite=self.suite,
            level=self.level,
            name=self.name,
            number=self.number,
            path=str(self.path),
        )


class Loader(Protocol):
    """One layout of folders."""

    name: str  # of the suite that is laid out so; empty where suites are named after their folders

    def recognises(self, folder: Path) -> bool:
        """Whether a folder is laid out so; looks at names only."""

    def entries(self, suite: str, folder: Path) -> Iterator[Entry]:
        """What it holds, in any order."""


def read_text(path: Path) -> str:
    """A file as text.

    Raises:
        UsageError: it is missing, not UTF-8, or larger than any problem file.
    """
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"cannot read {path}: it is no regular file", hint="leave it out")
        if path.stat().st_size > MAX_FILE_BYTES:
            limit = f"{MAX_FILE_BYTES / 1e6:.0f} MB"
            raise UsageError(f"{path} is larger than {limit}", hint="move data out of the file")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"no such file: {path}", hint="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", hint="give a readable UTF-8 text file") from None


def read_json(path: Path) -> Any:
    """A JSON file.

    Raises:
        InvalidReferenceError: it is no JSON.
        UsageError: as :func:`read_text`.
    """
    return parse_json(read_text(path), path)


def parse_json(text: str, path: Path, line: int | None = None) -> Any:
    """JSON that lies in a file, at a line where it is one of several.

    Raises:
        InvalidReferenceError: it is no JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise unusable(path, f"not valid JSON: {error}", line=line) from None


def unusable(
    path: Path, message: str, hint: str = "mend the file, or leave it out", *, line: int | None = None
) -> InvalidReferenceError:
    """The error that a file of a suite is no problem."""
    where = f"{path}{'' if line is None else f', line {line}'}"
    return InvalidReferenceError(f"{where}: {message}", hint=hint, problem=str(path), line=line, stage="parse")


def literal(value: Any) -> str:
    """A value of JSON as a Python literal, a long list or dict over several lines."""
    if isinstance(value, dict) and len(repr(value)) > 100:
        inner = "".join(f"    {key!r}: {value[key]!r},\n" for key in value)
        return f"{{\n{inner}}}"
    if isinstance(value, list) and len(repr(value)) > 100:
        return "[\n" + "".join(f"    {item!r},\n" for item in value) + "]"
    return repr(value)
