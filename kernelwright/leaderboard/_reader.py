"""The store as pages read it: read-only, a connection for each thread."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from kernelwright.store import Store

BUSY_S = 5.0  # how long a page waits for whoever has the store for itself


class Reader:
    """Hands out read-only stores; closes all of them at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()
        self._opened: list[Store] = []
        self._lock = threading.Lock()

    @property
    def store(self) -> Store:
        """This thread's store; another one where a file was put in the place of the one that was opened.

        Raises:
            StoreError: there is none, it is not ours, or it is not up to date.
        """
        found, file = getattr(self._local, "opened", (None, None))
        here = _file_at(self.path)
        if isinstance(found, Store) and here is not None and here == file:
            return found
        made = Store.open(self.path, readonly=True, busy_timeout_s=BUSY_S)
        self._local.opened = made, here
        with self._lock:
            self._opened.append(made)
            if isinstance(found, Store):
                self._opened.remove(found)
                found.close()
        return made

    def close(self) -> None:
        """Close every connection that was opened."""
        with self._lock:
            for store in self._opened:
                store.close()
            self._opened.clear()


def _file_at(path: Path) -> tuple[int, int] | None:
    """Which file is there, by its device and number."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
