"""Our own kernels for a device: their CUDA sources, and the PTX that drivers translate for their device."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["FOLDER", "MODULES", "ptx", "source_hash"]

FOLDER = Path(__file__).parent / "code"
MODULES = ("door", "keeper")


def ptx(name: str) -> bytes:
    """The text of one module for ``cuModuleLoadData``, ended by a zero byte."""
    return (FOLDER / f"{name}.ptx").read_bytes() + b"\0"


def source_hash(name: str) -> str:
    """The SHA-256 of the sources that a module's PTX is compiled from."""
    return hashlib.sha256(b"".join((FOLDER / file).read_bytes() for file in ("common.cuh", f"{name}.cu"))).hexdigest()
