"""The HTTP side of the reward server: access control, request checks, and waiting for replies."""

from __future__ import annotations

import asyncio
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from fastapi import FastAPI, Request
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from kernelwright.errors import KernelwrightError
from kernelwright.rl._jobs import Answer, Job, NameTaken, QueueFull
from kernelwright.rl._service import Service, refusal
from kernelwright.rl._wire import (
    CLIENT_HEADER,
    MOST_BODY_BYTES,
    MOST_WAIT_S,
    NAME_PATTERN,
    EpisodeJob,
    Pending,
    ScoreJob,
    StepJob,
)

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_CLIENT: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(?::\d{1,5})?")
_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
Asked = TypeVar("Asked", bound=BaseModel)


class Refused(Exception):
    """A request is refused."""

    def __init__(self, answer: Answer, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(answer.status)
        self.answer = answer
        self.headers = dict(headers or {})


@dataclass(frozen=True)
class Access:
    """Decides which requests are allowed.

    Attributes:
        tokens: secrets by the names of their holders. Without tokens, only requests to a loopback host name are
            answered, so that no web page can reach the server by a host name of its own.
        max_body_bytes: most bytes of a request.
    """

    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_body_bytes: int = MOST_BODY_BYTES

    def client(self, request: Request) -> str:
        """The client's name, by which the queue takes turns. Raise Refused if the client has no access."""
        holder = self._holder(request)
        if holder and len(self.tokens) > 1:
            return holder
        given = request.headers.get(CLIENT_HEADER, "")
        if given and not _CLIENT.fullmatch(given):
            raise Refused(refusal(400, f"{CLIENT_HEADER} may have 1 to 64 letters, digits and ._-"))
        return given or (request.client.host if request.client else "unknown")

    def knows(self, request: Request) -> bool:
        """Whether the client has access, and may see more than that the server is up."""
        try:
            self._holder(request)
        except Refused:
            return False
        return True

    def _holder(self, request: Request) -> str:
        if not self.tokens:
            hosts = request.headers.getlist("host")
            named = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
            if named is None or named[1].lower() not in LOOPBACK_NAMES:
                raise Refused(refusal(421, "this server does not answer to that host name"))
            return ""
        kind, _, secret = request.headers.get("authorization", "").partition(" ")
        given = secret.strip().encode() if kind.lower() == "bearer" else b""
        # Compare all tokens, each in constant time, so that the response time reveals nothing about them.
        same = [name for name, token in self.tokens.items() if hmac.compare_digest(token.encode(), given)]
        if not same:
            says = {"WWW-Authenticate": "Bearer"}
            raise Refused(refusal(401, "a token is needed", "send it as 'Authorization: Bearer ...'"), says)
        return same[0]


def create_app(service: Service, access: Access) -> FastAPI:
    """The web side of a server."""
    app = FastAPI(title="kernelwright rewards", docs_url=None, redoc_url=None, openapi_url=None)

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return _reply(error.answer, error.headers)

    @app.get("/health")
    async def health(request: Request) -> Response:
        known = service.jobs.describe() if access.knows(request) else {}
        return _reply(Answer(200, json.dumps({"status": "ok", **known}).encode()))

    @app.get("/v1/problems")
    async def problems(request: Request) -> Response:
        access.client(request)
        found = await run_in_threadpool(service.problems)
        return _reply(Answer(200, json.dumps({"problems": found}).encode()))

    @app.post("/v1/score")
    async def score(request: Request) -> Response:
        client = access.client(request)
        asked = await _body(request, access, ScoreJob)
        await _check(service, {one.problem for one in asked.requests})
        return await _queued(service, service.scoring(client, asked), asked.wait_s)

    @app.post("/v1/episodes")
    async def begin(request: Request) -> Response:
        client = access.client(request)
        asked = await _body(request, access, EpisodeJob)
        await _check(service, {asked.problem})
        return await _queued(service, service.beginning(client, asked), asked.wait_s)

    @app.post("/v1/episodes/{episode}/step")
    async def step(request: Request, episode: str) -> Response:
        client = access.client(request)
        asked = await _body(request, access, StepJob)
        return await _queued(service, service.stepping(client, episode, asked), asked.wait_s)

    @app.get("/v1/jobs/{name}")
    async def job(request: Request, name: str) -> Response:
        client = access.client(request)
        found = service.jobs.find(client, name) if re.fullmatch(NAME_PATTERN, name) else None
        if found is None:
            raise Refused(refusal(404, "there is no such job", "ask for it again: POST it under the same name"))
        return await _awaited(found, _seconds(request.query_params.get("wait_s", "0")))

    return app


async def _body(request: Request, access: Access, kind: type[Asked]) -> Asked:
    """The parsed body of a request."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(refusal(415, "send JSON, as application/json"))
    text = bytearray()
    async for part in request.stream():
        text += part
        if len(text) > access.max_body_bytes:
            raise Refused(refusal(413, f"a request may have {access.max_body_bytes} bytes at most"))
    try:
        return kind.model_validate_json(bytes(text), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:200]
        raise Refused(refusal(422, f"{where or 'the body'}: {first['msg']}")) from None


async def _check(service: Service, problems: set[str]) -> None:
    def check() -> None:
        for problem in problems:
            service.check(problem)

    try:
        await run_in_threadpool(check)
    except KernelwrightError as error:
        raise Refused(refusal(422, error.message, error.hint)) from None


async def _queued(service: Service, job: Job, wait_s: float) -> Response:
    try:
        known = service.jobs.submit(job)
    except QueueFull as error:
        later = {"Retry-After": str(round(error.retry_after_s))}
        raise Refused(refusal(429, "the queue is full", "ask again later"), later) from None
    except NameTaken:
        raise Refused(refusal(409, "a job of this name has other content", "give each job a name of its own")) from None
    return await _awaited(known, wait_s)


async def _awaited(job: Job, wait_s: float) -> Response:
    """A job's answer, or its state if it is not done in time."""
    try:
        if not job.done.done():
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(job.done)), wait_s)
        answer = job.done.result(0)
    except TimeoutError:
        state: Any = job.state if job.state in ("waiting", "running") else "running"
        return _reply(Answer(202, Pending(job=job.name, state=state).model_dump_json().encode()))
    return _reply(answer, {"Retry-After": "5"} if answer.status == 503 else {})


def _seconds(text: str) -> float:
    """The seconds to wait that a query asks for; 0 if it is not a number."""
    return min(float(text), MOST_WAIT_S) if re.fullmatch(r"\d{1,3}(\.\d{1,3})?", text) else 0.0


def _reply(answer: Answer, headers: Mapping[str, str] | None = None) -> Response:
    return Response(answer.body, answer.status, {**_HEADERS, **(headers or {})}, "application/json")
