"""Files of rows, written one row at a time, and folders that appear whole or not at all."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from kernelwright.errors import MissingToolError, UsageError
from kernelwright.records import Record
from kernelwright.rl._columns import COLUMNS, Kind, arrow_schema

__all__ = ["ExportedFile", "Format", "RowFiles", "check_tools", "described", "fresh_folder"]

Format = Literal["parquet", "jsonl"]
Row = dict[str, Any]
_GROUPS: dict[Kind, int] = {"trajectories": 4}  # rows that parquet keeps in memory, and in a row group
_GROUP = 64  # of the other kinds, whose rows are much smaller
_CHUNK_BYTES = 1 << 20


class ExportedFile(Record):
    """A file of an export; ``rows`` is None for files without rows."""

    path: str
    sha256: str
    size_bytes: int
    kind: Kind | None = None
    split: str = ""
    rows: int | None = None


class _Writer(Protocol):
    def write(self, row: Row) -> None: ...

    def close(self) -> None: ...


class _JsonLines:
    def __init__(self, path: Path, kind: Kind) -> None:
        self._file = path.open("w", encoding="utf-8", newline="\n")

    def write(self, row: Row) -> None:
        self._file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")

    def close(self) -> None:
        self._file.close()


class _Parquet:
    def __init__(self, path: Path, kind: Kind) -> None:
        pyarrow = check_tools()
        self._pyarrow = pyarrow
        self._schema = arrow_schema(pyarrow, kind)
        self._file = pyarrow.parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._group = _GROUPS.get(kind, _GROUP)
        self._waiting: list[Row] = []

    def write(self, row: Row) -> None:
        self._waiting.append(row)
        if len(self._waiting) == self._group:
            self._flush()

    def _flush(self) -> None:
        self._file.write_table(self._pyarrow.Table.from_pylist(self._waiting, schema=self._schema))
        self._waiting = []

    def close(self) -> None:
        if self._waiting:
            self._flush()
        self._file.close()


_WRITERS: dict[Format, type[_JsonLines] | type[_Parquet]] = {"jsonl": _JsonLines, "parquet": _Parquet}


class RowFiles:
    """The files of all kinds and splits below a folder: ``sft-train.parquet`` and so on.

    A context manager that keeps the files open.
    """

    def __init__(self, folder: Path, kinds: Sequence[Kind], splits: Sequence[str], formats: Sequence[Format]) -> None:
        self._folder = folder
        self.counts = {(kind, split): 0 for kind in kinds for split in splits}
        self._formats = formats
        self._open: dict[tuple[Kind, str], list[_Writer]] = {}

    def __enter__(self) -> RowFiles:
        for kind, split in self.counts:
            paths = [(form, self._folder / f"{kind}-{split}.{form}") for form in self._formats]
            self._open[kind, split] = [_WRITERS[form](path, kind) for form, path in paths]
        return self

    def __exit__(self, *of_an_error: object) -> None:
        for writers in self._open.values():
            for writer in writers:
                writer.close()

    def write(self, kind: Kind, split: str, row: Row) -> None:
        """Add a row, which has the columns of its kind."""
        if row.keys() != COLUMNS[kind].keys():
            raise AssertionError(f"{kind}: {row.keys() ^ COLUMNS[kind].keys()}")
        clean = _clean(row)
        for writer in self._open[kind, split]:
            writer.write(clean)
        self.counts[kind, split] += 1

    def files(self) -> list[ExportedFile]:
        """The written files, once they are closed."""
        return [
            described(self._folder, f"{kind}-{split}.{form}", kind=kind, split=split, rows=rows)
            for (kind, split), rows in self.counts.items()
            for form in self._formats
        ]


def described(folder: Path, name: str, **more: Any) -> ExportedFile:
    """A file with its hash and size."""
    path = folder / name
    return ExportedFile(path=name, sha256=_hash(path), size_bytes=path.stat().st_size, **more)


def check_tools() -> Any:
    """The package that writes parquet.

    Raises:
        MissingToolError: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingToolError(
            "parquet needs the package pyarrow", hint="pip install 'kernelwright[data]', or --format jsonl"
        ) from None
    return pyarrow


@contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes ``folder`` at the end. After an error nothing is left of it.

    Raises:
        UsageError: the folder exists and is not empty, or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists already, and is not an empty folder", hint="choose another --out")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}", hint="choose another place") from error
    try:
        yield made
        made.chmod(0o755)
        made.replace(folder)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error}", hint="choose another place") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _clean(value: Any) -> Any:
    """The value with all text valid UTF-8 (models write halves of characters) and None for NaN and infinities."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {key: _clean(inner) for key, inner in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return [_clean(inner) for inner in value] if isinstance(value, list) else value


def _hash(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()
