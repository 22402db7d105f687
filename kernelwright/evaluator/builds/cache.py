"""What compilers made, kept by content hash; a folder each, checked when it is read, the longest unused forgotten.

Compilers build for the processor that they run on. So a product is another one's where machines share a folder.
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
    """Products under ``root``, of ``size_bytes`` together at most when it is opened."""

    def __init__(self, root: Path, size_bytes: int) -> None:
        self._root = root
        self._prune(size_bytes)

    def load(self, key: str) -> tuple[bytes, str] | None:
        """Product and log; None where there is none, or a damaged one."""
        folder = self._folder(key)
        try:
            product = (folder / _DATA).read_bytes()
            os.utime(folder / _DATA)
            digest, _, log = (folder / _LOG).read_text().partition("\n")
        except OSError:
            return None
        return (product, log) if hashlib.sha256(product).hexdigest() == digest else None

    def keep(self, key: str, product: bytes, log: str) -> None:
        """Store atomically; a full disk only costs the next build."""
        folder = self._folder(key)
        digest = hashlib.sha256(product).hexdigest()
        for name, data in ((_DATA, product), (_LOG, f"{digest}\n{log}".encode())):
            try:
                write_whole(folder / name, data)
            except OSError:
                return

    def is_first_request(self, key: str) -> bool:
        """Whether nobody has asked for ``key`` yet; from now on somebody has."""
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
                status = (product if product.exists() else folder).stat()  # one that was only asked for counts, too
                entries.append((status.st_mtime, status.st_size, folder))
        total = sum(size for _, size, _ in entries)
        for _, size, folder in sorted(entries):
            if total <= size_bytes:
                return
            shutil.rmtree(folder, ignore_errors=True)
            total -= size
