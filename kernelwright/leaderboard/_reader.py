"""The store as pages read it: read-only, a connection for each thread."""

from __future__ import annotations

import threading
from pathlib import Path

from kernelwright.store import Store


class Reader:
    """Hands out read-only stores; closes all of them at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()
        self._opened: list[Store] = []
        self._lock = threading.Lock()

    @property
    def store(self) -> Store:
        """This thread's store.

        Raises:
            StoreError: there is none, it is not ours, or it is not up to date.
        """
        found = getattr(self._local, "store", None)
        if not isinstance(found, Store):
            found = self._local.store = Store.open(self.path, readonly=True)
            with self._lock:
                self._opened.append(found)
        return found

    def close(self) -> None:
        """Close every connection that was opened."""
        with self._lock:
            for store in self._opened:
                store.close()
            self._opened.clear()
