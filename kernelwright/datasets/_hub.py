"""Downloads KernelBench's problems from the Hugging Face hub and writes them in the layout of its repository.

Only this module needs a network. The user requests the download explicitly, once; everything else reads the folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kernelwright.errors import MachineError, MissingToolError, UsageError

HUB_REPOSITORY = "ScalingIntelligence/KernelBench"
SUITE_FOLDER = "KernelBench"
_NAME = re.compile(r"[\w][\w.()+-]{0,199}")
_INSTALL = "pip install 'kernelwright[data]'"

Rows = Iterable[Mapping[str, Any]]


class Fetched(NamedTuple):
    """The result of a download: the suite's folder, the number of problems, and a message for each refused row."""

    folder: Path
    problems: int
    refused: tuple[str, ...]


def fetch_kernelbench(
    folder: Path, repository: str = HUB_REPOSITORY, revision: str | None = None, rows: Callable[..., Rows] | None = None
) -> Fetched:
    """Write the dataset's problems as ``folder/KernelBench/level1/1_name.py`` and so on.

    An existing file with another text is not changed; it is listed in ``refused``.

    Args:
        repository: a dataset with the columns ``code``, ``level``, ``name`` and ``problem_id``.
        revision: a branch, tag or commit of the repository.
        rows: reads the dataset, given repository and revision; default: from the hub.

    Raises:
        MissingToolError: huggingface_hub or pyarrow is not installed.
        MachineError: the hub cannot be reached, or has no such dataset.
        UsageError: no row is a problem, or the folder cannot be written.
    """
    suite = folder / SUITE_FOLDER
    written, refused = 0, []
    for row in (rows or _rows_of_hub)(repository, revision):
        level, name, code = row.get("level"), row.get("name"), row.get("code")
        number = row.get("problem_id")
        if type(level) is not int or type(number) is not int or not isinstance(name, str) or not isinstance(code, str):
            refused.append(f"a row without code, level, name and problem_id: {str(row)[:80]}")
            continue
        stem = name.removesuffix(".py")
        stem = stem if stem.startswith(f"{number}_") else f"{number}_{stem}"
        if not name.strip() or not _NAME.fullmatch(stem) or not 0 < level < 100:
            refused.append(f"{name[:80]!r} of level {level} cannot be the name of a file")
            continue
        path = suite / f"level{level}" / f"{stem}.py"
        try:
            if path.exists() and path.read_bytes() != code.encode():
                refused.append(f"{path} exists already, with another text")
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(code.encode())
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}", hint="choose another folder") from error
        written += 1
    if not written:
        raise UsageError(f"{repository} has no problem that could be written", hint="; ".join(refused[:3]) or "no rows")
    return Fetched(suite, written, tuple(refused))


def _rows_of_hub(repository: str, revision: str | None) -> Rows:
    try:
        import pyarrow.parquet
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise MissingToolError(f"fetching problems needs the package {error.name}", hint=_INSTALL) from None
    try:
        found = snapshot_download(repository, repo_type="dataset", revision=revision, allow_patterns=["*.parquet"])
    except (OSError, ValueError) as error:  # the hub client's exceptions are subclasses of these
        raise MachineError(
            f"cannot fetch {repository} from the hub: {' '.join(str(error).split())[:200]}",
            hint="check the network and the name, or clone its repository and give that as --suite-dir",
        ) from error
    for path in sorted(Path(found).rglob("*.parquet")):
        yield from pyarrow.parquet.read_table(path).to_pylist()
