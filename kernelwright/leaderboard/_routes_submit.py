"""Pages of submissions. This process writes a submission into the spool as a file, and never runs it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import HTTPException, Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, RedirectResponse, Response

from kernelwright.errors import StoreError
from kernelwright.leaderboard._access import Verifier
from kernelwright.leaderboard._pages import Pages, get, post
from kernelwright.leaderboard._site import Site
from kernelwright.submissions import Spool, SubmissionError, Token

_FIELDS = ("problem", "backend", "source", "note", "token")
_MOST_FIELDS = 16
_SCHEMA = {
    "type": "object",
    "required": ["problem", "source"],
    "properties": {
        "problem": {"type": "string", "description": "suite/level/name"},
        "source": {"type": "string", "description": "a Python file with a class ModelNew"},
        "backend": {"type": "string", "enum": ["", "cpp", "triton", "cuda"]},
        "note": {"type": "string"},
    },
}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": _SCHEMA}, "application/x-www-form-urlencoded": {"schema": _SCHEMA}},
    }
}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    status: {"description": text}
    for status, text in {
        201: "accepted; it waits to be judged",
        303: "accepted; a form is redirected to the submission's page",
        400: "malformed JSON or form",
        401: "no token, or a wrong one",
        403: "the token is not for submitting, or the request came from another site's page",
        413: "too large",
        415: "neither JSON nor a form",
        422: "not a valid submission",
        429: "too many submissions in the last hour",
        503: "too many submissions wait, or the spool cannot be written",
    }.items()
}


class SubmissionPages(Pages):
    """Submissions."""

    tag = "submissions"

    def __init__(self, site: Site, spool: Spool, tokens: Verifier) -> None:
        super().__init__(site)
        self._spool = spool
        self._tokens = tokens

    def _form(self, request: Request, status: int = 200, error: str = "", hint: str = "", **given: str) -> Response:
        known = [row["problem"] for row in self._site.reader.store.problems_in_use()]
        return self._site.page(
            request,
            "submit.html",
            status,
            section="submit",
            problems=known,
            limits=self._spool.limits,
            error=error,
            hint=hint,
            given={name: given.get(name, "") for name in ("problem", "backend", "source", "note")},
            base=str(request.base_url).rstrip("/"),
        )

    @get("/submit", response_class=Response, summary="The form of a submission")
    def submit(self, request: Request) -> Response:
        return self._form(request)

    @post(
        "/submissions",
        status_code=201,
        response_class=Response,
        responses=_ANSWERS,
        openapi_extra=_BODY,
        summary="Submit a kernel",
    )
    async def put(self, request: Request) -> Response:
        body, is_form = await _fields(request)
        status, error, hint, headers = 0, "", "", {}
        holder = request.scope.get("state", {}).get("holder")
        if body.get("token"):
            holder = await run_in_threadpool(self._tokens.verify, body["token"])
        if not isinstance(holder, Token):
            status, error, headers = 401, "a token for submitting is needed", {"WWW-Authenticate": "Bearer"}
        elif "submit" not in holder.scopes:
            status, error = 403, "this token is not for submitting"
        else:
            try:
                taken = await run_in_threadpool(
                    lambda: self._spool.put(
                        problem_id=body.get("problem", ""),
                        source=body.get("source", ""),
                        author=holder.name,
                        backend=body.get("backend") or None,  # type: ignore[arg-type]
                        note=body.get("note", ""),
                    )
                )
            except SubmissionError as refused:
                status, error, hint = int(refused.data["status"]), refused.message, refused.hint
                if "retry_after_s" in refused.data:
                    headers = {"Retry-After": str(int(refused.data["retry_after_s"]) + 1)}
            except StoreError:
                status, error = 503, "the spool cannot be written now"
        if status:
            if is_form:
                answer = await run_in_threadpool(
                    lambda: self._form(request, status, error, hint, **{k: v for k, v in body.items() if k != "token"})
                )
            else:
                answer = JSONResponse({"detail": error, "hint": hint}, status_code=status)
            answer.headers.update(headers)
            return answer
        where = f"/submissions/{taken.id}"
        if is_form:
            return RedirectResponse(where, status_code=303)
        return JSONResponse({"id": taken.id, "state": "waiting", "url": where}, 201, headers={"Location": where})

    @get("/submissions/{submission}", response_class=Response, summary="The state of a submission")
    def state(self, request: Request, submission: Annotated[str, Path(max_length=60)]) -> Response:
        name, dot, ending = submission.partition(".")
        found = self._spool.state(name) if not dot or ending == "json" else None
        if found is None:
            raise HTTPException(404, "there is no such submission")
        if dot:
            return Response(found.model_dump_json(), media_type="application/json")
        return self._site.page(request, "submission.html", section="submit", state=found)


async def _fields(request: Request) -> tuple[Mapping[str, str], bool]:
    """The fields of a request, and whether they come from a form.

    Raises:
        HTTPException: the body is neither JSON nor a form, or is malformed.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    if kind == "application/x-www-form-urlencoded":
        try:
            found = parse_qs(
                body.decode("ascii"),
                keep_blank_values=True,
                max_num_fields=_MOST_FIELDS,
                encoding="utf-8",
                errors="strict",
            )
        except ValueError as error:
            raise HTTPException(400, "the form is malformed") from error
        return {name: values[0] for name, values in found.items() if name in _FIELDS}, True
    if kind != "application/json":
        raise HTTPException(415, "send application/json, or a form")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "the JSON is malformed") from error
    if not isinstance(data, dict):
        raise HTTPException(422, "the JSON is not an object")
    wrong = [name for name, value in data.items() if name not in _FIELDS or not isinstance(value, str | None)]
    if wrong or "token" in data:
        raise HTTPException(422, "the only fields are problem, source, backend and note, which are strings")
    return {name: value for name, value in data.items() if value is not None}, False
