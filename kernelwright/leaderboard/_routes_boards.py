"""Pages of boards: the rankings of entrants on suites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from kernelwright.errors import UsageError
from kernelwright.leaderboard._boards import (
    SORTS,
    Board,
    Entry,
    Filters,
    Place,
    board_of,
    choose_place,
    places_of,
    progress_of,
    sort_entries,
)
from kernelwright.leaderboard._costs import Costs
from kernelwright.leaderboard._pages import Pages, get
from kernelwright.leaderboard._site import Site, given
from kernelwright.leaderboard._tables import Form, as_file

Sort = Literal["mean", "fast_0", "fast_1", "fast_1.5", "fast_2", "sol", "correct", "coverage", "own", "cost", "entrant"]
Short = Annotated[str | None, Field(max_length=200)]
_DATE = r"^$|^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?Z?)?$"
_DAY_END = "T23:59:59.999Z"
assert set(Sort.__args__) == set(SORTS)  # type: ignore[attr-defined]


class PlaceQuery(BaseModel):
    """The key of a board. Missing parts are taken from the fullest board that fits."""

    suite: Short = None
    environment: Short = None
    baseline: Short = None
    backend: Short = None


class BoardQuery(PlaceQuery):
    """The filters of a board. ``until`` is a date, or a time in UTC: show the board as of then."""

    level: Annotated[str | None, Field(pattern=r"^$|^\d{1,4}$")] = None
    category: Short = None
    dtype: Short = None
    until: Annotated[str | None, Field(pattern=_DATE)] = None
    sizes: Literal["own", "changed"] = "own"

    @property
    def filters(self) -> Filters:
        """The query as filters for the figures. A date means the end of that day."""
        until = f"{self.until}{_DAY_END}" if self.until and len(self.until) == 10 else self.until
        level = int(self.level) if self.level else None
        narrowed = (self.category or None, self.backend or None, self.dtype or None, until or None)
        return Filters(level, *narrowed, self.sizes)


class SortedQuery(BoardQuery):
    """The query of a board, with the order of its rows."""

    sort: Sort = "mean"
    order: Literal["asc", "desc"] = "desc"


class EntrantQuery(PlaceQuery):
    """An entrant on a board."""

    author: Annotated[str, Field(max_length=200)]
    recipe: Annotated[str, Field(max_length=200)] = ""


class BoardPages(Pages):
    """Boards and entrants."""

    tag = "boards"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._costs = Costs(site.reader)

    def _place_of(self, query: PlaceQuery) -> tuple[Place | None, list[dict[str, Any]]]:
        places = places_of(self._site.reader.store)
        return choose_place(places, query.suite or None, query.environment or None, query.baseline or None), places

    def _asked(self, query: BoardQuery) -> tuple[Board | None, list[dict[str, Any]]]:
        place, places = self._place_of(query)
        if place is None:
            return None, places
        return board_of(self._site.reader.store, place, query.filters, self._costs.by_entrant()), places

    @get("/", response_class=Response, summary="A board as a page")
    def board(self, request: Request, query: Annotated[SortedQuery, Query()]) -> Response:
        found, places = self._asked(query)
        if found is None:
            return self._site.page(request, "board.html", section="boards", board=None)
        points = (
            progress_of(self._site.reader.store, found.place, found.problems, found.filters) if found.problems else []
        )
        here = next(p for p in places if Place(p["suite"], p["environment"], p["baseline"]) == found.place)
        return self._site.page(
            request,
            "board.html",
            section="boards",
            board=found,
            entries=_sorted(found, query),
            ranks=_ranks(found),
            places=places,
            here=here,
            sort=query.sort,
            order=query.order,
            query=_query(found.place, found.filters),
            chart=_chart(points),
            has_charts=len(points) > 1,
        )

    @get("/board.{form}", response_class=Response, summary="A board's rows")
    def board_file(self, form: Form, query: Annotated[SortedQuery, Query()]) -> Response:
        found, _ = self._asked(query)
        if found is None or not found.problems:
            return as_file(form, [], {"board": None})
        ranks = _ranks(found)
        about = {"board": found.place._asdict(), "filters": found.filters._asdict(), "problems": found.problems}
        return as_file(form, [_row(entry, ranks) for entry in _sorted(found, query)], about)

    @get("/best.{form}", response_class=Response, summary="The best kernel of each problem of a board")
    def best_file(self, form: Form, query: Annotated[BoardQuery, Query()]) -> Response:
        found, _ = self._asked(query)
        if found is None:
            return as_file(form, [], {"board": None})
        rows = [_best_row(found.best[name]) for name in found.problems if name in found.best]
        return as_file(form, rows, {"board": found.place._asdict()})

    @get("/entrant", response_class=Response, summary="An entrant's kernels on a board, as a page")
    def entrant(self, request: Request, query: Annotated[EntrantQuery, Query()]) -> Response:
        place, rows = self._of_entrant(query)
        who = {"author": query.author, "recipe": query.recipe}
        narrowed = given(**place._asdict(), backend=query.backend, **who)
        return self._site.page(
            request, "entrant.html", section="boards", **dict[str, Any](who, place=place, rows=rows, query=narrowed)
        )

    @get("/entrant.{form}", response_class=Response, summary="An entrant's kernels on a board")
    def entrant_file(self, form: Form, query: Annotated[EntrantQuery, Query()]) -> Response:
        place, rows = self._of_entrant(query)
        about = {**place._asdict(), "author": query.author, "recipe": query.recipe}
        return as_file(form, [_best_row(row) for row in rows], about)

    def _of_entrant(self, query: EntrantQuery) -> tuple[Place, list[dict[str, Any]]]:
        store = self._site.reader.store
        place, _ = self._place_of(query)
        rows = [] if place is None else store.entrants(place.environment, place.baseline, backend=query.backend or None)
        of_suite = {row["problem"] for row in store.problems_in_use() if place and row["suite"] == place.suite}
        who = (query.author, query.recipe)
        own = [row for row in rows if (row["author"], row["recipe"]) == who and row["problem"] in of_suite]
        if place is None or not own:
            raise UsageError(f"no kernel of {query.author} {query.recipe} is on this board")
        return place, own


_BEST = ("problem", "backend", "author", "recipe", "confirmed", "median", "low", "high", "faster", "latency_ms")
_BEST_TOO = ("own_share", "candidate", "evaluation_id", "run_id", "inputs", "created_at")


def _best_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in (*_BEST, *_BEST_TOO)}


def _sorted(board: Board, query: SortedQuery) -> list[Entry]:
    return sort_entries(board.entries, query.sort, ascending=query.order == "asc") if board.problems else []


def _query(place: Place, filters: Filters) -> dict[str, Any]:
    """The query of a link to this board."""
    until = filters.until.removesuffix(_DAY_END) if filters.until else None
    sizes = None if filters.sizes == "own" else filters.sizes
    return dict(given(**place._asdict(), **filters._replace(until=until)._asdict() | {"sizes": sizes}))


def _ranks(board: Board) -> dict[tuple[str, str], int]:
    """The rank by the mean, by author and recipe. It does not depend on the table's order."""
    ordered = sort_entries(board.entries, "mean") if board.problems else []
    return {(entry.author, entry.recipe): number for number, entry in enumerate(ordered, 1)}


def _row(entry: Entry, ranks: dict[tuple[str, str], int]) -> dict[str, Any]:
    row = entry._asdict()
    fast = row.pop("fast")
    return {"rank": ranks[entry.author, entry.recipe], **row, **{f"fast_{p}": share for p, share in fast.items()}}


def _chart(points: list[dict[str, Any]]) -> dict[str, Any]:
    from datetime import datetime

    at = [datetime.fromisoformat(point["at"].replace("Z", "+00:00")).timestamp() for point in points]
    means = [round(point["mean"], 4) for point in points]
    return {
        "x": at,
        "series": [{"label": "best of all", "y": means}],
        "x_label": "time",
        "y_label": "geometric mean speedup, best so far",
    }
