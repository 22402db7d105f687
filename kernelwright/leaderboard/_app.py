"""The application: guard, cache and routes over one store."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

from kernelwright import __version__
from kernelwright.errors import StoreError, UsageError
from kernelwright.leaderboard._access import COOKIE, Access, Guard
from kernelwright.leaderboard._cache import Cache, Version
from kernelwright.leaderboard._makers import Maker
from kernelwright.leaderboard._reader import Reader
from kernelwright.leaderboard._routes_boards import BoardPages
from kernelwright.leaderboard._routes_kernels import KernelPages
from kernelwright.leaderboard._routes_problems import ProblemPages
from kernelwright.leaderboard._routes_quarantine import QuarantinePages
from kernelwright.leaderboard._routes_runs import RunPages
from kernelwright.leaderboard._routes_submit import SubmissionPages
from kernelwright.leaderboard._site import Site
from kernelwright.submissions import Spool

_HEADINGS = {
    400: "Bad request",
    401: "A token is needed",
    403: "That is not allowed",
    404: "There is no such page",
    405: "Method not allowed",
    409: "Not available",
    422: "Invalid input",
    500: "Something broke",
    503: "Not now",
}
_FILES = (".json", ".csv", ".py")
_log = logging.getLogger("kernelwright.leaderboard")


def create_app(
    store: Path,
    *,
    access: Access | None = None,
    spool: Spool | None = None,
    cache_dir: Path | None = None,
    poll_s: float = 1.0,
    cached: bool = True,
    ending: Callable[[], bool] = lambda: False,
    maker: Maker | None = None,
) -> FastAPI:
    """The leaderboard of a store as an ASGI application. The store is opened read-only.

    Args:
        access: the requests to accept; by default those to this machine's loopback names.
        spool: where submissions are written; None to accept none. Submissions need ``access.tokens``.
        cache_dir: folder of the recorded lint findings.
        poll_s: seconds between two queries for a live run.
        cached: whether answers are cached while the store does not change.
        ending: whether the server is about to end. Event streams of live runs then close.
        maker: makes the pages that are not cached; by default this application.

    Raises:
        StoreError: there is no store, or its schema is not up to date.
        UsageError: a spool is given without tokens.
    """
    access = access or Access()
    if spool is not None and access.tokens is None:
        raise UsageError("submissions need tokens", hint="run 'kernelwright tokens create NAME --scope submit'")
    version = Version(store)
    reader = Reader(store, version if cached else None)
    _ = reader.store  # raises now if the store cannot be opened
    site = Site(reader, accepts_submissions=spool is not None)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        yield
        reader.close()
        version.close()

    middleware = [Middleware(Guard, access=access)]
    if cached:
        middleware.append(Middleware(Cache, version=version, maker=maker))
    app = FastAPI(
        title="kernelwright leaderboard",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        lifespan=life,
        middleware=middleware,
        redirect_slashes=False,
    )
    app.state.site = site
    _add_pages(app, site, cache_dir or store.parent)
    app.include_router(RunPages(site, poll_s=poll_s, ending=ending).router())
    if spool is not None and access.tokens is not None:
        app.include_router(SubmissionPages(site, spool, access.tokens).router())
    _add_own(app, site, access)
    _add_errors(app, site, access)
    return app


def create_page_app(store: Path, *, accepts_submissions: bool, cache_dir: Path | None) -> FastAPI:
    """The application of a page-making process: only the pages, without guard and cache."""
    site = Site(Reader(store, Version(store)), accepts_submissions=accepts_submissions)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    _add_pages(app, site, cache_dir or store.parent)
    app.include_router(RunPages(site).router())
    _add_errors(app, site, Access())
    site.prepare()
    return app


def _add_pages(app: FastAPI, site: Site, cache_dir: Path) -> None:
    app.include_router(BoardPages(site).router())
    app.include_router(KernelPages(site).router())
    app.include_router(ProblemPages(site, cache_dir).router())
    app.include_router(QuarantinePages(site).router())


def _add_own(app: FastAPI, site: Site, access: Access) -> None:
    """Add the routes that are no data pages: assets, health, login, API description."""

    @app.get("/static/{tag}/{name:path}", include_in_schema=False)
    def asset(request: Request, tag: str, name: str) -> Response:
        found = site.assets.answer(tag, name, zipped="gzip" in request.headers.get("accept-encoding", ""))
        if found is None:
            raise HTTPException(404, "there is no such file")
        return found

    @app.get("/healthz", tags=["server"], summary="Whether the store can be read")
    def healthz() -> JSONResponse:
        site.reader.store.query("SELECT 1")
        return JSONResponse({"status": "ok", "version": __version__})

    @app.get("/docs/api", include_in_schema=False)
    def api(request: Request) -> Response:
        return site.page(request, "api.html", rows=_described(app.openapi()))

    if access.tokens is None:
        return
    tokens = access.tokens

    @app.get("/login", include_in_schema=False)
    def login(request: Request) -> Response:
        return site.page(request, "login.html", wrong=False)

    @app.post("/login", include_in_schema=False)
    async def log_in(request: Request) -> Response:
        try:
            given = parse_qs((await request.body()).decode("ascii"), max_num_fields=4).get("token", [""])[0].strip()
        except ValueError:
            given = ""
        known = await run_in_threadpool(tokens.verify, given) if given else None
        if known is None:
            return site.page(request, "login.html", 401, wrong=True)
        answer = RedirectResponse("/", status_code=303)
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, given, httponly=True, samesite="strict", secure=secure, max_age=30 * 86_400)
        return answer


def _add_errors(app: FastAPI, site: Site, access: Access) -> None:
    def told(
        request: Request, status: int, sentence: str, hint: str = "", headers: Mapping[str, str] | None = None
    ) -> Response:
        wants_page = "text/html" in request.headers.get("accept", "") and not request.url.path.endswith(_FILES)
        if wants_page:
            heading = _HEADINGS.get(status, "That did not work")
            answer: Response = site.page(request, "message.html", status, heading=heading, sentence=sentence, hint=hint)
        else:
            answer = JSONResponse({"detail": sentence, "hint": hint}, status_code=status)
        answer.headers.update(headers or {})
        return answer

    @app.exception_handler(StarletteHTTPException)
    def http_error(request: Request, error: StarletteHTTPException) -> Response:
        return told(request, error.status_code, str(error.detail), headers=error.headers)

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return told(request, 422, f"{where}: {first['msg']}")

    @app.exception_handler(UsageError)
    def usage(request: Request, error: UsageError) -> Response:
        return told(request, 404, error.message, error.hint)

    @app.exception_handler(StoreError)
    def store(request: Request, error: StoreError) -> Response:
        _log.error("%s: %s", request.url.path, error)
        return told(request, 503, "the store cannot be read now", "the server's log says why")

    @app.exception_handler(Exception)
    def broken(request: Request, error: Exception) -> Response:
        text = "something broke; the server's log says what\n"
        headers = {**access.headers, "Cache-Control": "no-store"}  # sent outside of the guard, which would add them
        return PlainTextResponse(text, status_code=500, headers=headers)


def _described(openapi: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for path, methods in openapi["paths"].items():
        for method, about in methods.items():
            query = [p["name"] for p in about.get("parameters", []) if p["in"] == "query"]
            rows.append({"method": method.upper(), "path": path, "summary": about.get("summary", ""), "query": query})
    return rows
