"""Pages of problems: their list, and each problem with its ranked kernels."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import HTTPException, Query, Request
from markupsafe import Markup
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from kernelwright.datasets import LintFinding, LintRecords
from kernelwright.errors import UsageError
from kernelwright.leaderboard._archive_map import archive_of
from kernelwright.leaderboard._boards import choose_place, places_of
from kernelwright.leaderboard._cells import path_of
from kernelwright.leaderboard._pages import Pages, get
from kernelwright.leaderboard._site import Site, given
from kernelwright.leaderboard._tables import Form, as_file
from kernelwright.plots import Series, histogram
from kernelwright.records import Problem

PAGE = 50
_MOST_PAGES = 100_000
_POINTS = 240  # of a curve
_BEST = ("median", "low", "high", "confirmed", "baseline", "author", "candidate", "evaluation_id", "environment")
_BEST_TOO = ("backend",)
Text = Annotated[str | None, Query(max_length=200)]
Page = Annotated[int, Query(ge=1, le=_MOST_PAGES)]
_RANKED = ("rank", "median", "low", "high", "faster", "latency_ms", "confirmed", "backend", "author", "recipe")
_RANKED_TOO = ("candidate", "evaluation_id", "run_id", "own_share", "inputs", "created_at")


class Where(NamedTuple):
    """The key of a ranking of a problem."""

    environment: str
    baseline: str
    backend: str


class ProblemPages(Pages):
    """Problems."""

    tag = "problems"

    def __init__(self, site: Site, cache_dir: Path) -> None:
        super().__init__(site)
        self._lints = LintRecords(cache_dir)

    @get("/problems", response_class=Response, summary="All problems as a page")
    def problems(self, request: Request, suite: Text = None, category: Text = None, q: Text = None) -> Response:
        rows = _problem_rows(self._site)
        shown = _matching(rows, suite, category, q)
        return self._site.page(
            request,
            "problems.html",
            section="problems",
            rows=shown,
            total=len(rows),
            suites=sorted({row["suite"] for row in rows}),
            categories=sorted({row["category"] for row in rows}),
            asked={"suite": suite or "", "category": category or "", "q": q or ""},
        )

    @get("/problems.{form}", response_class=Response, summary="All problems")
    def problems_file(self, form: Form, suite: Text = None, category: Text = None, q: Text = None) -> Response:
        return as_file(form, _matching(_problem_rows(self._site), suite, category, q))

    @get("/problems/{problem:path}/ranking.{form}", response_class=Response, summary="A problem's ranking")
    def ranking_file(
        self,
        problem: str,
        form: Form,
        environment: Text = None,
        baseline: Text = None,
        backend: Text = None,
        page: Page = 1,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    ) -> Response:
        where = _where(self._site, _known(self._site, problem), environment, baseline, backend)[0]
        if where is None:
            return as_file(form, [], {"problem": problem})
        found = self._site.reader.store.ranked(problem, *where, limit=limit, offset=(page - 1) * limit)
        rows = [{key: row[key] for key in (*_RANKED, *_RANKED_TOO)} for row in found]
        return as_file(form, rows, {"problem": problem, **where._asdict(), "page": page})

    @get("/problems/{problem:path}/archive.html", response_class=Response, summary="A problem's archive map")
    def archive(
        self, request: Request, problem: str, run: Annotated[str | None, Query(max_length=40)] = None
    ) -> Response:
        _known(self._site, problem)
        return self._site.page(
            request, "archive.html", problem=problem, archive=archive_of(self._site.reader.store, problem, run)
        )

    @get("/problems/{problem:path}/reference.py", response_class=Response, summary="A problem's reference")
    def reference(self, problem: str) -> Response:
        source = _known(self._site, problem).source
        headers = {"Content-Disposition": 'attachment; filename="reference.py"'}
        return PlainTextResponse(source.encode("utf-8", "replace"), headers=headers)

    @get("/problems/{problem:path}", response_class=Response, summary="A problem as a page")
    def problem_page(
        self,
        request: Request,
        problem: str,
        environment: Text = None,
        baseline: Text = None,
        backend: Text = None,
        page: Page = 1,
        view: Literal["log", "linear"] = "log",
    ) -> Response:
        known = _known_or_archive(self._site, problem)
        if known is None:
            query = f"?{request.url.query}" if request.url.query else ""
            return RedirectResponse(f"{path_of('problems', problem)}.html{query}", status_code=308)
        store = self._site.reader.store
        where, choices = _where(self._site, known, environment, baseline, backend)
        found: dict[str, Any] = {"where": where, "choices": choices, "ranked": [], "pages": 1, "page": page}
        if where is not None:
            speedups = store.speedups_on(problem, *where)
            counts = _counts(store.tallies(environment=where.environment, problem=problem), where.backend)
            progress = store.progress(where.environment, where.baseline, problem=problem, backend=where.backend)
            found |= {
                "ranked": store.ranked(problem, *where, limit=PAGE, offset=(page - 1) * PAGE),
                "pages": max(1, -(-len(speedups) // PAGE)),
                "standing": len(speedups),
                "counts": counts,
                "entrants": store.entrants(where.environment, where.baseline, backend=where.backend, problem=problem),
                "fast_p": _fast_p(speedups, sum(counts.values())),
                "progress": _progress(progress),
                "distribution": Markup(
                    histogram(
                        [Series("ranked kernels", speedups)],
                        f"speedup over {where.baseline}",
                        f"Speedups of {len(speedups)} kernels",
                        log=view == "log",
                        mark=1.0,
                    )
                ),
                "baselines": _baselines(store.ranked(problem, *where, limit=1), choices, where, self._site, problem),
            }
        return self._site.page(
            request,
            "problem.html",
            section="problems",
            problem=known,
            lints=_findings(self._lints, known),
            note=known.meta.note,
            runs=_runs_on(self._site, problem),
            query=given(**where._asdict()) if where else {},
            has_charts=where is not None,
            **found,
        )


def _known(site: Site, problem: str) -> Problem:
    try:
        return site.reader.store.problem(problem)
    except UsageError as error:
        raise HTTPException(404, error.message) from error


def _known_or_archive(site: Site, problem: str) -> Problem | None:
    """A problem; None for the old address of a problem's archive map (now a problem may have such a name)."""
    try:
        return _known(site, problem)
    except HTTPException:
        if not problem.endswith("/archive"):
            raise
        _known(site, problem.removesuffix("/archive"))
        return None


def _findings(lints: LintRecords, problem: Problem) -> tuple[LintFinding, ...]:
    try:
        return lints.known(problem)
    except SyntaxError as error:
        return (LintFinding(rule="invalid-reference", severity="error", message=f"no valid Python: {error.msg}"),)


def _problem_rows(site: Site) -> list[dict[str, Any]]:
    """Every problem with its best kernel on the fullest board of its suite, confirmed kernels first."""
    store = site.reader.store
    best: dict[str, dict[str, Any]] = {}
    in_use = store.problems_in_use()
    suite_of = {known["problem"]: known["suite"] for known in in_use}
    places = places_of(store)
    for suite in {place["suite"] for place in places}:
        place = choose_place(places, suite, None, None)
        if place is None:
            continue
        for row in store.entrants(place.environment, place.baseline):
            if suite_of[row["problem"]] != suite:
                continue
            held = best.get(row["problem"])
            if held is None or (row["confirmed"], row["low"]) > (held["confirmed"], held["low"]):
                best[row["problem"]] = {**row, "environment": place.environment}
    judged: Counter[str] = Counter()
    for row in store.tallies():
        judged[row["problem"]] += row["evaluations"]
    rows = []
    for known in in_use:
        held = best.get(known["problem"])
        rows.append(
            {
                **{key: known[key] for key in ("problem", "suite", "level", "number", "name", "category", "variant")},
                "judged": judged[known["problem"]],
                **{key: None if held is None else held[key] for key in (*_BEST, *_BEST_TOO)},
            }
        )
    return rows


def _matching(
    rows: Sequence[dict[str, Any]], suite: str | None, category: str | None, q: str | None
) -> list[dict[str, Any]]:
    return [
        row
        for row in rows
        if (not suite or row["suite"] == suite)
        and (not category or row["category"] == category)
        and (not q or q.lower() in row["problem"].lower())
    ]


def _where(
    site: Site, problem: Problem, environment: str | None, baseline: str | None, backend: str | None
) -> tuple[Where | None, list[dict[str, Any]]]:
    """The wanted ranking, and all rankings of the problem; HTTPException 404 if no ranking fits.

    Missing parts are taken from the fullest board of the suite, as for boards and the list of problems.
    """
    store = site.reader.store
    choices = store.rankings_of(problem.id)
    fitting = [
        row
        for row in choices
        if environment in (None, "", row["environment"])
        and baseline in (None, "", row["baseline"])
        and backend in (None, "", row["backend"])
    ]
    if not fitting:
        if environment or baseline or backend:
            raise HTTPException(404, f"{problem.id} has no such ranking")
        return None, choices
    fullness = {
        (place["environment"], place["baseline"]): place["problems"]
        for place in places_of(store)
        if place["suite"] == problem.suite
    }
    first = max(
        fitting, key=lambda row: (fullness.get((row["environment"], row["baseline"]), 0), row["baseline"] == "eager")
    )
    return Where(first["environment"], first["baseline"], first["backend"]), choices


def _counts(tallies: Sequence[Mapping[str, Any]], backend: str) -> dict[str, int]:
    """The number of evaluations in a language by status, the most frequent first."""
    found: Counter[str] = Counter()
    for row in tallies:
        if row["backend"] == backend:
            found[row["status"]] += row["evaluations"]
    return dict(found.most_common())


def _fast_p(speedups: Sequence[float], judged: int) -> dict[str, Any]:
    """A chart over p: the share of all judged candidates that are right and more than p times as fast."""
    ordered = sorted(speedups)
    every = max(1, len(ordered) // _POINTS)
    places = [*range(0, len(ordered), every), len(ordered) - 1] if ordered else []
    total = max(judged, len(ordered), 1)
    return {
        "x": [0.0, *(round(ordered[place], 4) for place in places)],
        "series": [
            {
                "label": "fast_p",
                "y": [len(ordered) / total, *(round((len(ordered) - place - 1) / total, 5) for place in places)],
            }
        ],
        "x_label": "p: speedup over the baseline",
        "y_label": "share of judged candidates",
    }


def _progress(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A chart of the best speedup so far: one line for confirmed kernels, one for kernels timed in searches."""
    best = {0: None, 1: None}
    at, lines = [], {0: [], 1: []}  # type: ignore[var-annotated]
    for row in rows:
        kind = row["confirmed"]
        if best[kind] is not None and row["median"] <= best[kind]:
            continue
        best[kind] = row["median"]
        at.append(datetime.fromisoformat(row["created_at"].replace("Z", "+00:00")).timestamp())
        for each, value in best.items():
            lines[each].append(value)
    names = {1: "confirmed", 0: "in searches"}
    return {
        "x": at,
        "series": [{"label": names[kind], "y": lines[kind]} for kind in (1, 0) if any(lines[kind])],
        "x_label": "time",
        "y_label": "speedup, best so far",
    }


def _baselines(
    first: Sequence[Mapping[str, Any]],
    choices: Sequence[Mapping[str, Any]],
    where: Where,
    site: Site,
    problem: str,
) -> list[dict[str, Any]]:
    """The baselines' latencies in milliseconds, from the evaluation of the kernel that ranks first."""
    if not first:
        return []
    evaluation = site.reader.store.speedups(first[0]["evaluation_id"])
    latency = first[0]["latency_ms"]
    rows = [
        {"name": row["baseline"], "latency_ms": latency * row["median"], "speedup": row["median"]} for row in evaluation
    ]
    return [*sorted(rows, key=lambda row: row["name"]), {"name": "first kernel", "latency_ms": latency, "speedup": 1.0}]


def _runs_on(site: Site, problem: str, most: int = 8) -> list[dict[str, Any]]:
    """The latest runs that worked on a problem."""
    rows = site.reader.store.query(
        "SELECT runs.id, runs.status, runs.created_at, json_extract(runs.config_json, '$.recipe') AS recipe, "
        "json_extract(runs.config_json, '$.coder') AS coder, "
        "json_extract(runs.config_json, '$.search') IS NOT NULL AS searched "
        "FROM (SELECT DISTINCT run_id FROM tallies WHERE run_id <> '' "
        "AND problem_version IN (SELECT version FROM problems WHERE problem = ?) "
        "ORDER BY run_id DESC LIMIT ?) AS known JOIN runs ON runs.id = known.run_id ORDER BY runs.id DESC",
        [problem, most],
    )
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in rows:
        found[row["id"]] = row
    return list(found.values())
