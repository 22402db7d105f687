"""A cache of compiled products by content hash. Each has a folder and is checked on reading; the least used go first.

Compilers build for the processor that they run on. So the key includes the processor: machines may share a folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path

from kernelwright.files import write_whole
from kernelwright.inline import toolchain

_DATA = "product.so"
_LOG = "log"


class ProductCache:
    """Products under ``root``. Opening the cache reduces it to ``size_bytes``."""

    def __init__(self, root: Path, size_bytes: int) -> None:
        self._root = root
        self._prune(size_bytes)

    def load(self, key: str) -> tuple[bytes, str] | None:
        """Product and log; None if the product is missing or damaged."""
        folder = self._folder(key)
        try:
            product = (folder / _DATA).read_bytes()
            os.utime(folder / _DATA)
            digest, _, log = (folder / _LOG).read_text().partition("\n")
        except OSError:
            return None
        return (product, log) if hashlib.sha256(product).hexdigest() == digest else None

    def keep(self, key: str, product: bytes, log: str) -> None:
        """Store atomically. On a full disk nothing is stored, which only costs the next build."""
        folder = self._folder(key)
        digest = hashlib.sha256(product).hexdigest()
        for name, data in ((_DATA, product), (_LOG, f"{digest}\n{log}".encode())):
            try:
                write_whole(folder / name, data)
            except OSError:
                return

    def is_first_request(self, key: str) -> bool:
        """Whether this is the first request for ``key``. The request is recorded."""
        try:
            self._folder(key).mkdir(parents=True)
        except FileExistsError:
            return False
        except OSError:
            return True
        return True

    def _folder(self, key: str) -> Path:
        return self._root / hashlib.sha256(f"{key}\0{toolchain.processor()}".encode()).hexdigest()

    def _prune(self, size_bytes: int) -> None:
        entries = []
        for folder in self._root.glob("*"):
            with contextlib.suppress(OSError):
                product = folder / _DATA
                status = (product if product.exists() else folder).stat()  # recorded requests count, too
                entries.append((status.st_mtime, status.st_size, folder))
        total = sum(size for _, size, _ in entries)
        for _, size, folder in sorted(entries):
            if total <= size_bytes:
                return
            shutil.rmtree(folder, ignore_errors=True)
            total -= size
