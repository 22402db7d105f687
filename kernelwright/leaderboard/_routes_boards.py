"""Boards: who stands where on a suite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
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
from kernelwright.leaderboard._site import Site, given
from kernelwright.leaderboard._tables import Form, as_file

Sort = Literal["mean", "fast_0", "fast_1", "fast_1.5", "fast_2", "sol", "correct", "coverage", "own", "cost", "entrant"]
Text = Annotated[str | None, Query(max_length=200)]
_DATE = r"^$|^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?Z?)?$"
assert set(Sort.__args__) == set(SORTS)  # type: ignore[attr-defined]


def routes(site: Site) -> APIRouter:
    """The routes of boards."""
    router = APIRouter(tags=["boards"])
    costs = Costs(site.reader)

    def asked(
        suite: str | None,
        environment: str | None,
        baseline: str | None,
        filters: Filters,
    ) -> tuple[Board | None, list[dict[str, Any]]]:
        store = site.reader.store
        places = places_of(store)
        place = choose_place(places, suite or None, environment or None, baseline or None)
        return (None if place is None else board_of(store, place, filters, costs.by_entrant())), places

    @router.get("/", response_class=Response, summary="A board as a page")
    def board(
        request: Request,
        suite: Text = None,
        environment: Text = None,
        baseline: Text = None,
        level: Annotated[str | None, Query(pattern=r"^$|^\d{1,4}$")] = None,
        category: Text = None,
        backend: Text = None,
        dtype: Text = None,
        until: Annotated[str | None, Query(pattern=_DATE)] = None,
        sizes: Literal["own", "changed"] = "own",
        sort: Sort = "mean",
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        filters = _filters(level, category, backend, dtype, until, sizes)
        found, places = asked(suite, environment, baseline, filters)
        if found is None:
            return site.page(request, "board.html", section="boards", board=None)
        points = progress_of(site.reader.store, found.place, found.problems, filters) if found.problems else []
        here = next(p for p in places if Place(p["suite"], p["environment"], p["baseline"]) == found.place)
        return site.page(
            request,
            "board.html",
            section="boards",
            board=found,
            entries=sort_entries(found.entries, sort, ascending=order == "asc") if found.problems else [],
            ranks=_ranks(found),
            places=places,
            here=here,
            sort=sort,
            order=order,
            query=_query(found.place, filters),
            chart=_chart(points),
            has_charts=len(points) > 1,
        )

    @router.get("/board.{form}", response_class=Response, summary="A board's rows")
    def board_file(
        form: Form,
        suite: Text = None,
        environment: Text = None,
        baseline: Text = None,
        level: Annotated[str | None, Query(pattern=r"^$|^\d{1,4}$")] = None,
        category: Text = None,
        backend: Text = None,
        dtype: Text = None,
        until: Annotated[str | None, Query(pattern=_DATE)] = None,
        sizes: Literal["own", "changed"] = "own",
        sort: Sort = "mean",
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        found, _ = asked(suite, environment, baseline, _filters(level, category, backend, dtype, until, sizes))
        if found is None or not found.problems:
            return as_file(form, [], {"board": None})
        ranks = _ranks(found)
        rows = [_row(entry, ranks) for entry in sort_entries(found.entries, sort, ascending=order == "asc")]
        about = {"board": found.place._asdict(), "filters": found.filters._asdict(), "problems": found.problems}
        return as_file(form, rows, about)

    @router.get("/best.{form}", response_class=Response, summary="The best kernel of each problem of a board")
    def best_file(
        form: Form,
        suite: Text = None,
        environment: Text = None,
        baseline: Text = None,
        level: Annotated[str | None, Query(pattern=r"^$|^\d{1,4}$")] = None,
        category: Text = None,
        backend: Text = None,
        dtype: Text = None,
        until: Annotated[str | None, Query(pattern=_DATE)] = None,
        sizes: Literal["own", "changed"] = "own",
    ) -> Response:
        found, _ = asked(suite, environment, baseline, _filters(level, category, backend, dtype, until, sizes))
        if found is None:
            return as_file(form, [], {"board": None})
        rows = [_best_row(found.best[name]) for name in found.problems if name in found.best]
        return as_file(form, rows, {"board": found.place._asdict()})

    @router.get("/entrant", response_class=Response, summary="An entrant's kernels on a board, as a page")
    def entrant(
        request: Request,
        author: Annotated[str, Query(max_length=200)],
        recipe: Annotated[str, Query(max_length=200)] = "",
        suite: Text = None,
        environment: Text = None,
        baseline: Text = None,
        backend: Text = None,
    ) -> Response:
        place, rows = of_entrant(author, recipe, suite, environment, baseline, backend)
        query = given(**place._asdict(), backend=backend, author=author, recipe=recipe)
        return site.page(
            request, "entrant.html", section="boards", author=author, recipe=recipe, place=place, rows=rows, query=query
        )

    @router.get("/entrant.{form}", response_class=Response, summary="An entrant's kernels on a board")
    def entrant_file(
        form: Form,
        author: Annotated[str, Query(max_length=200)],
        recipe: Annotated[str, Query(max_length=200)] = "",
        suite: Text = None,
        environment: Text = None,
        baseline: Text = None,
        backend: Text = None,
    ) -> Response:
        place, rows = of_entrant(author, recipe, suite, environment, baseline, backend)
        return as_file(form, [_best_row(row) for row in rows], {**place._asdict(), "author": author, "recipe": recipe})

    def of_entrant(
        author: str, recipe: str, suite: str | None, environment: str | None, baseline: str | None, backend: str | None
    ) -> tuple[Place, list[dict[str, Any]]]:
        store = site.reader.store
        place = choose_place(places_of(store), suite or None, environment or None, baseline or None)
        rows = [] if place is None else store.entrants(place.environment, place.baseline, backend=backend or None)
        of_suite = {row["problem"] for row in store.problems_in_use() if place and row["suite"] == place.suite}
        own = [r for r in rows if (r["author"], r["recipe"]) == (author, recipe) and r["problem"] in of_suite]
        if place is None or not own:
            raise UsageError(f"nothing of {author} {recipe} stands there")
        return place, own

    return router


_DAY_END = "T23:59:59.999Z"
_BEST = ("problem", "backend", "author", "recipe", "confirmed", "median", "low", "high", "faster", "latency_ms")
_BEST_TOO = ("own_share", "candidate", "evaluation_id", "run_id", "inputs", "created_at")


def _best_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in (*_BEST, *_BEST_TOO)}


def _filters(
    level: str | None,
    category: str | None,
    backend: str | None,
    dtype: str | None,
    until: str | None,
    sizes: str,
) -> Filters:
    end = f"{until}{_DAY_END}" if until and len(until) == 10 else until
    return Filters(int(level) if level else None, category or None, backend or None, dtype or None, end or None, sizes)


def _query(place: Place, filters: Filters) -> dict[str, Any]:
    """What a link to this board says."""
    until = filters.until.removesuffix(_DAY_END) if filters.until else None
    sizes = None if filters.sizes == "own" else filters.sizes
    return dict(given(**place._asdict(), **filters._replace(until=until)._asdict() | {"sizes": sizes}))


def _ranks(board: Board) -> dict[tuple[str, str], int]:
    """By author and recipe: the place by the mean, whatever the table is sorted by."""
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
