"""Access control: a guard in front of the application, and the security headers of every answer.

The guard is plain ASGI. For a request that it refuses, nothing is parsed, routed or read from the store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kernelwright.errors import KernelwrightError

COOKIE = "kernelwright_token"
LOGIN = "/login"
OPEN_PATHS = (LOGIN, "/healthz")
OPEN_FOLDER = "/static/"
MAX_URL_BYTES = 8_192
MAX_HEADERS = 64
_MAX_LENGTH_DIGITS = 18
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(?::\d{1,5})?")
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Known(Protocol):
    """The owner and the scopes of a token."""

    @property
    def name(self) -> str:
        """The name of its owner."""

    @property
    def scopes(self) -> tuple[str, ...]:
        """What it allows: ``read``, ``submit``."""


class Verifier(Protocol):
    """Checks tokens."""

    def verify(self, secret: str) -> Known | None:
        """The owner and scopes of a token; None if it is wrong, revoked or expired."""


@dataclass(frozen=True)
class Access:
    """The requests that a server accepts.

    Attributes:
        hosts: accepted names in the Host header, without a port.
        tokens: checks tokens; None for a server without tokens.
        reading_needs_token: whether pages need a token with the scope ``read``.
        max_body_bytes: limit of a request's body.
    """

    hosts: frozenset[str] = frozenset({"localhost", "127.0.0.1", "[::1]"})
    tokens: Verifier | None = None
    reading_needs_token: bool = False
    max_body_bytes: int = 512_000
    headers: Mapping[str, str] = field(default_factory=lambda: dict(HEADERS))


class TooLarge(Exception):
    """A body exceeds the limit while it is read."""


class Guard:
    """Refuses requests for other hosts, from other sites' pages, that are too large, or that lack a needed token."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        answer = self._refusal(scope, headers)
        guarded = self._with_headers(send, scope["path"])
        if answer is not None:
            await answer(scope, receive, guarded)
            return
        began = False

        async def told(message: Message) -> None:
            nonlocal began
            began = began or message["type"] == "http.response.start"
            await guarded(message)

        try:
            await self._app(scope, self._limited(receive), told)
        except TooLarge:
            if not began:
                await self._too_large()(scope, receive, guarded)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        hosts = headers.getlist("host")
        named = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if named is None or named[1].lower() not in self._access.hosts:
            return _plain(421, "this server does not answer to that host name")
        address = (scope.get("raw_path") or b"") + scope["query_string"]
        if len(address) > MAX_URL_BYTES:
            return _plain(414, "the address is too long")
        if not address.isascii():
            return _plain(400, "the address holds characters that must be quoted")
        if len(scope["headers"]) > MAX_HEADERS:
            return _plain(431, "too many headers")
        if scope["method"] not in _SAFE and _is_foreign(headers, hosts[0]):
            return _plain(403, "this came from another site's page")
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit():
            return _plain(400, "the content length is no number")
        if len(length) > _MAX_LENGTH_DIGITS or int(length) > self._access.max_body_bytes:
            return self._too_large()
        return self._stranger(scope, headers)

    def _stranger(self, scope: Scope, headers: Headers) -> Response | None:
        """The refusal of a request that lacks a needed token, else None. The token's holder is noted in the scope."""
        given = bearer(headers)
        try:
            known = self._access.tokens.verify(given) if given and self._access.tokens is not None else None
        except KernelwrightError:  # the file of the tokens cannot be read: every request is refused
            return _plain(503, "tokens cannot be checked now")
        scope.setdefault("state", {})["holder"] = known
        path = scope["path"]
        if not self._access.reading_needs_token or path in OPEN_PATHS or path.startswith(OPEN_FOLDER):
            return None
        if known is None:
            is_page = scope["method"] == "GET" and "text/html" in headers.get("accept", "")
            if is_page and "authorization" not in headers:  # a browser, whether it has no cookie or an expired one
                return RedirectResponse(LOGIN, status_code=303)
            return _plain(
                401, "a token is needed: send it as 'Authorization: Bearer ...'", {"WWW-Authenticate": "Bearer"}
            )
        if "read" not in known.scopes:
            return _plain(403, "this token is not for reading")
        return None

    def _too_large(self) -> Response:
        return _plain(413, f"a request may have {self._access.max_body_bytes} bytes at most")

    def _limited(self, receive: Receive) -> Receive:
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._access.max_body_bytes:
                raise TooLarge
            return message

        return counted

    def _with_headers(self, send: Send, path: str) -> Send:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._access.headers.items():
                    headers[name] = value
                if "cache-control" not in headers:
                    headers["Cache-Control"] = "no-cache"
            await send(message)

        return sent


def bearer(headers: Headers) -> str:
    """The token of a request, from its header or its cookie; empty without one."""
    kind, _, secret = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and secret:
        return secret.strip()
    # http.cookies would take seconds for a quoted value of backslashes (CVE-2024-7592). Our cookie is not quoted.
    pairs = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
    return next((value for name, _, value in pairs if name == COOKIE), "")


def _is_foreign(headers: Headers, host: str) -> bool:
    """Whether the browser's headers say that another site's page sent the request."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != host.lower()


def _plain(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{text}\n", status_code=status, headers=dict(headers or {}))
