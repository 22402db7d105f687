"""Pages of runs: their live state, their transcripts, and the comparison of two runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import HTTPException, Path, Query, Request
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from kernelwright.errors import KernelwrightError, UsageError
from kernelwright.leaderboard import _runs as runs
from kernelwright.leaderboard._pages import Pages, get
from kernelwright.leaderboard._run_events import RunEvents
from kernelwright.leaderboard._site import Site
from kernelwright.leaderboard._tables import Form, as_file
from kernelwright.store import RunRow

PAGE = 50
_REPLIES = 40
_CHOICES = 100
_POLL_S = 1.0
_MOST_COMPARED = 6_000  # evaluations of a run: a comparison reads all of them
RunId = Annotated[str, Path(pattern=r"^[0-9A-Za-z]{4,40}$")]
Text = Annotated[str | None, Query(max_length=300)]


class RunPages(Pages):
    """Runs."""

    tag = "runs"

    def __init__(self, site: Site, *, poll_s: float = _POLL_S, ending: Callable[[], bool] = lambda: False) -> None:
        """``ending``: whether the server is about to end. Event streams then close."""
        super().__init__(site)
        self._events = RunEvents(poll_s=poll_s, ending=ending)

    @get("/runs", response_class=Response, summary="Runs as a page")
    def run_list(self, request: Request, before: Text = None) -> Response:
        rows = runs.run_list(self._site.reader.store, before=before or None, limit=PAGE)
        return self._site.page(request, "runs.html", section="runs", rows=rows, page_size=PAGE, before=before or "")

    @get("/runs.{form}", response_class=Response, summary="Runs")
    def run_list_file(
        self, form: Form, before: Text = None, limit: Annotated[int, Query(ge=1, le=1000)] = 200
    ) -> Response:
        return as_file(form, runs.run_list(self._site.reader.store, before=before or None, limit=limit))

    @get("/compare", response_class=Response, summary="Two runs compared")
    def compare(self, request: Request, a: Text = None, b: Text = None, baseline: Text = None) -> Response:
        store = self._site.reader.store
        choices = runs.run_list(store, before=None, limit=_CHOICES)
        if not a or not b:
            return self._site.page(
                request, "compare.html", section="runs", choices=choices, a=a or "", b=b or "", found=None, reason=""
            )
        sides = (_known(self._site, a), _known(self._site, b))
        from kernelwright.campaign import compare_runs

        reason, found = "", None
        sizes = [sum(row["evaluations"] for row in store.tallies(run_id=side.id)) for side in sides]
        if max(sizes) > _MOST_COMPARED:
            reason = f"too large to compare here: kernelwright compare {sides[0].id} {sides[1].id}"
        else:
            try:
                found = compare_runs(
                    store, runs.without_paths(sides[0]), runs.without_paths(sides[1]), baseline or None
                )
            except KernelwrightError as error:
                reason = error.message
            except ValidationError:
                reason = "one of the runs was recorded by another version, and its data cannot be read"
        return self._site.page(
            request,
            "compare.html",
            section="runs",
            choices=choices,
            a=sides[0].id,
            b=sides[1].id,
            found=found,
            reason=reason,
            chart=None if found is None else _curves(found),
            has_charts=found is not None,
        )

    @get("/runs/live", response_class=Response, summary="The runs that are being driven, as a page")
    def live(self, request: Request) -> Response:
        return self._site.page(request, "driven.html", section="runs", rows=runs.driven(self._site.reader.store))

    @get("/runs/live.{form}", response_class=Response, summary="The runs that are being driven")
    def live_file(self, form: Form) -> Response:
        return as_file(form, [row.model_dump(mode="json") for row in runs.driven(self._site.reader.store)])

    @get("/runs/{run}", response_class=Response, summary="A run as a page")
    def run_page(self, request: Request, run: RunId) -> Response:
        known = _known(self._site, run)
        chart = runs.progress_of(self._site.reader.store, known)
        return self._site.page(
            request,
            "run.html",
            section="runs",
            run=known,
            live=known.status == "running",
            settings=runs.settings_of(known),
            chart=chart,
            has_charts=True,
            **_state(self._site, known),
        )

    @get("/runs/{run}/problems.{form}", response_class=Response, summary="A run's problems")
    def problems_file(self, run: RunId, form: Form) -> Response:
        known = _known(self._site, run)
        return as_file(form, runs.winners_of(self._site.reader.store, known), {"run": known.id, "status": known.status})

    @get("/runs/{run}/transcript", response_class=Response, summary="The replies of models in a run")
    def transcript(
        self, request: Request, run: RunId, problem: Text = None, page: Annotated[int, Query(ge=1, le=100_000)] = 1
    ) -> Response:
        known = _known(self._site, run)
        rows = runs.transcript_of(
            self._site.reader.store, known.id, problem=problem or None, offset=(page - 1) * _REPLIES, limit=_REPLIES + 1
        )
        return self._site.page(
            request,
            "transcript.html",
            section="runs",
            run=known,
            rows=rows[:_REPLIES],
            more=len(rows) > _REPLIES,
            page=page,
            problem=problem or "",
        )

    @get("/runs/{run}/transcript.{form}", response_class=Response, summary="The replies of models in a run")
    def transcript_file(
        self,
        run: RunId,
        form: Form,
        problem: Text = None,
        page: Annotated[int, Query(ge=1, le=100_000)] = 1,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    ) -> Response:
        known = _known(self._site, run)
        rows = runs.transcript_of(
            self._site.reader.store, known.id, problem=problem or None, offset=(page - 1) * limit, limit=limit
        )
        return as_file(form, rows, {"run": known.id})

    @get("/runs/{run}/replies/{call}", response_class=Response, summary="A model's whole reply")
    def reply(self, run: RunId, call: Annotated[str, Path(pattern=r"^[0-9A-Za-z]{4,40}$")]) -> Response:
        known = _known(self._site, run)
        used = (
            "SELECT reply_sha256 FROM llm_uses JOIN llm_calls ON llm_calls.id = call_id "
            "WHERE llm_uses.run_id = ? AND call_id = ? LIMIT 1"
        )
        rows = self._site.reader.store.query(used, [known.id, call])
        if not rows:
            raise HTTPException(404, "this run used no such reply")
        return _plain(self._site.reader.store.get_text(rows[0]["reply_sha256"]))

    @get("/runs/{run}/prompts/{sha}", response_class=Response, summary="A prompt")
    def prompt(self, run: RunId, sha: Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]) -> Response:
        known = _known(self._site, run)
        used = "SELECT 1 FROM llm_uses WHERE run_id = ? AND prompt_sha256 = ? LIMIT 1"
        if not self._site.reader.store.query(used, [known.id, sha]):
            raise HTTPException(404, "this run used no such prompt")
        return _plain(self._site.reader.store.get_text(sha))

    @get("/runs/{run}/events", response_class=StreamingResponse, summary="An event whenever a run changes (SSE)")
    async def events(self, request: Request, run: RunId) -> Response:
        first = await run_in_threadpool(lambda: runs.latest_of(self._site.reader.store, run))
        if first is None:
            raise HTTPException(404, f"no run {run}")
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        told = self._events.told(lambda: runs.latest_of(self._site.reader.store, run), request.is_disconnected)
        return StreamingResponse(told, media_type="text/event-stream", headers=headers)


def _known(site: Site, run: str) -> RunRow:
    try:
        return site.reader.store.run(run)
    except UsageError as error:
        raise HTTPException(404, error.message) from error


def _state(site: Site, run: RunRow) -> dict[str, Any]:
    """The part of a run's page that changes while the run is live."""
    store = site.reader.store
    tallies = store.tallies(run_id=run.id)
    winners = runs.winners_of(store, run)
    return {
        "winners": winners,
        "done": sum(row["state"] in ("done", "failed") for row in winners),
        "failures": runs.failures_of(tallies),
        "evaluations": sum(row["evaluations"] for row in tallies),
        "latest": runs.latest_evaluations(store, run.id),
        "events": runs.events_of(store, run.id),
        "costs": store.run_costs(run.id),
        "device_seconds": store.device_seconds(run.id),
        "requests": store.request_counts(run.id),
    }


def _curves(found: Any) -> dict[str, Any]:
    most = max(len(found.a.curve), len(found.b.curve))

    def padded(curve: tuple[float, ...]) -> list[float | None]:
        return [round(value, 4) for value in curve] + [None] * (most - len(curve))

    return {
        "x": list(range(1, most + 1)),
        "series": [
            {"label": f"A: {found.a.recipe}", "y": padded(found.a.curve)},
            {"label": f"B: {found.b.recipe}", "y": padded(found.b.curve)},
        ],
        "x_label": "evaluations of each problem",
        "y_label": f"mean speedup over {found.baseline}, best so far",
    }


def _plain(text: str) -> Response:
    return PlainTextResponse(text.encode("utf-8", "replace"), headers={"Content-Disposition": "inline"})
