"""The costs of entrants: dollars of all their runs, read from the store once in a while."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

from kernelwright.errors import UsageError
from kernelwright.leaderboard._reader import Reader
from kernelwright.leaderboard._site import author_of
from kernelwright.store import RunRow

_MOST_RUNS = 100_000
_CHANGING = frozenset({"running", "paused", "interrupted", "failed"})
_KEPT_S = 20.0


class Costs:
    """Dollars by author and recipe. The cost of a finished run does not change, so it is read once."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._known: dict[str, float | None] = {}
        self._totals: dict[tuple[str, str], float | None] = {}
        self._made_s = -_KEPT_S
        self._lock = threading.Lock()

    def by_entrant(self) -> dict[tuple[str, str], float | None]:
        """The sums; None if the cost of a run is unknown."""
        with self._lock:
            if time.monotonic() - self._made_s >= _KEPT_S:
                self._totals = self._sum()
                self._made_s = time.monotonic()
            return self._totals

    def _sum(self) -> dict[tuple[str, str], float | None]:
        store = self._reader.store
        asked = {row["run_id"] for row in store.query("SELECT DISTINCT run_id FROM llm_requests")}
        asked |= {
            row["run_id"] for row in store.query("SELECT DISTINCT run_id FROM llm_calls WHERE run_id IS NOT NULL")
        }
        sums: dict[tuple[str, str], list[float | None]] = defaultdict(list)
        for run in store.runs(limit=_MOST_RUNS) if asked else []:
            if run.id in asked:
                for spec in (run.config.coder, *run.config.models):
                    sums[author_of(spec), run.config.recipe].append(self._cost(run))
        return {who: None if None in costs else sum(c for c in costs if c is not None) for who, costs in sums.items()}

    def _cost(self, run: RunRow) -> float | None:
        if run.id in self._known and run.status not in _CHANGING:
            return self._known[run.id]
        try:
            found = self._reader.store.run_costs(run.id).cost_usd
        except UsageError:
            found = None
        self._known[run.id] = found
        return found
