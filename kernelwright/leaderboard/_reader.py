"""The store for pages: read-only, one connection for each thread, with cached answers that many pages share."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from kernelwright.store import Store

BUSY_S = 5.0  # how long a page waits while another process locks the store
MOST_ROWS = 60_000  # cached for other pages
_Rows = list[dict[str, Any]]


class Answers:
    """A cache of a store's rows, valid until the store is written to. All threads share it."""

    def __init__(self, version: Callable[[], Hashable], *, most_rows: int = MOST_ROWS) -> None:
        self._version = version
        self._most_rows = most_rows
        self._kept: OrderedDict[Hashable, tuple[Hashable, _Rows]] = OrderedDict()
        self._rows = 0
        self._lock = threading.Lock()

    def get(self, question: Hashable, ask: Callable[[], _Rows]) -> _Rows:
        """The rows that answer a question. Callers must not change them."""
        try:
            version = self._version()
        except (OSError, sqlite3.Error):  # asking the store itself raises what is wrong with it
            return ask()
        with self._lock:
            kept = self._kept.get(question)
            if kept is not None and kept[0] == version:
                self._kept.move_to_end(question)
                return kept[1]
        rows = ask()
        with self._lock:
            old = self._kept.pop(question, None)
            self._kept[question] = version, rows
            self._rows += len(rows) - (len(old[1]) if old is not None else 0)
            while self._rows > self._most_rows:
                _, (_, gone) = self._kept.popitem(last=False)
                self._rows -= len(gone)
        return rows


class PageStore(Store):
    """A store that shares answers about all problems between pages."""

    answers: Answers

    def board_places(self) -> _Rows:
        """See :meth:`Store.board_places`."""
        return self.answers.get("places", super().board_places)

    def problems_in_use(self) -> _Rows:
        """See :meth:`Store.problems_in_use`."""
        return self.answers.get("problems", super().problems_in_use)

    def refusal_rules(self) -> _Rows:
        """See :meth:`Store.refusal_rules`."""
        return self.answers.get("rules", super().refusal_rules)

    def entrants(
        self,
        environment: str,
        baseline: str,
        *,
        backend: str | None = None,
        problem: str | None = None,
        until: str | None = None,
    ) -> _Rows:
        """See :meth:`Store.entrants`."""
        ask = super().entrants
        question = ("entrants", environment, baseline, backend, problem, until)
        return self.answers.get(
            question, lambda: ask(environment, baseline, backend=backend, problem=problem, until=until)
        )

    def progress(
        self, environment: str, baseline: str, *, problem: str | None = None, backend: str | None = None
    ) -> _Rows:
        """See :meth:`Store.progress`."""
        ask = super().progress
        question = ("progress", environment, baseline, problem, backend)
        return self.answers.get(question, lambda: ask(environment, baseline, problem=problem, backend=backend))

    def tallies(
        self, *, environment: str | None = None, problem: str | None = None, run_id: str | None = None
    ) -> _Rows:
        """See :meth:`Store.tallies`."""
        ask = super().tallies
        question = ("tallies", environment, problem, run_id)
        return self.answers.get(question, lambda: ask(environment=environment, problem=problem, run_id=run_id))


class Reader:
    """Hands out read-only stores; closes all of them at the end.

    Args:
        version: a value that changes after every commit; without it, nothing is cached.
    """

    def __init__(self, path: Path, version: Callable[[], Hashable] | None = None) -> None:
        self.path = path
        self._answers = None if version is None else Answers(version)
        self._local = threading.local()
        self._opened: list[Store] = []
        self._lock = threading.Lock()

    @property
    def store(self) -> Store:
        """This thread's store. It is opened again if another file has replaced the store's file.

        Raises:
            StoreError: there is no store, the file is not a store, or its schema is not up to date.
        """
        found, file = getattr(self._local, "opened", (None, None))
        here = _file_at(self.path)
        if isinstance(found, Store) and here is not None and here == file:
            return found
        kind = Store if self._answers is None else PageStore
        made = kind.open(self.path, readonly=True, busy_timeout_s=BUSY_S)
        if isinstance(made, PageStore) and self._answers is not None:
            made.answers = self._answers
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
    """The device and inode of the file at a path; None without a file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
