"""Triton's compiler and launcher in a worker that has a device: launches stopped, and code compiled beforehand.

A candidate whose launches are stopped owes what it answers then to something else.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

__all__ = ["gather", "idle", "lay_down"]

_NAME = re.compile(r"[\w.-]{1,200}")
_GROUP = "__grp__"  # Triton's index of a kernel's files, which names them by their paths
_MOST_BYTES = 22 << 20  # of files; base64 makes a third more of them


def idle() -> None:
    """From now on a launch does nothing. Worker side, before a candidate is loaded."""
    with contextlib.suppress(ImportError):
        from triton.runtime.jit import JITFunction

        def skip(self: Any, *arguments: Any, **options: Any) -> None:
            return None

        JITFunction.run = skip


def gather() -> dict[str, Any]:
    """What Triton has compiled in this process's cache: ``folder``, and ``files`` by path in base64."""
    folder = Path(os.environ["TRITON_CACHE_DIR"])
    files, size = {}, 0
    for path in sorted(folder.glob("*/*")):
        data = path.read_bytes()
        size += len(data)
        if size > _MOST_BYTES:
            break
        files[f"{path.parent.name}/{path.name}"] = base64.b64encode(data).decode()
    return {"folder": str(folder), "files": files}


def lay_down(path: str) -> None:
    """Put what :func:`gather` found, read from ``path`` as JSON, into this process's cache.

    It is a candidate's own, and only its own workers get it; what has no such form as Triton's files is left out.
    """
    with open(path, "rb") as file:
        kept = json.load(file)
    folder, old = Path(os.environ["TRITON_CACHE_DIR"]), str(kept.get("folder", ""))
    for name, text in dict(kept.get("files") or {}).items():
        parts = name.split("/")
        if len(parts) != 2 or not all(_NAME.fullmatch(part) and part.strip(".") for part in parts):
            continue
        data = base64.b64decode(text)
        if parts[1].startswith(_GROUP) and old:
            data = data.replace(old.encode(), str(folder).encode())
        (folder / parts[0]).mkdir(parents=True, exist_ok=True)
        (folder / parts[0] / parts[1]).write_bytes(data)
