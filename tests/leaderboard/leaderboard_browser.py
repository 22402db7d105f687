"""A browser without a network: it asks an application directly.

``Browser`` asks an application that runs in a thread of its own, as a server would; ``Page`` is what an HTML parser
makes of an answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from html.parser import HTMLParser
from typing import Any, NamedTuple
from urllib.parse import unquote

import anyio
import httpx2
from anyio.from_thread import start_blocking_portal

VOID = frozenset(["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"])


class Element:
    """An element with its attributes, and all the text in it."""

    def __init__(self, tag: str, attributes: Sequence[tuple[str, str | None]], within: tuple[str, ...]) -> None:
        self.tag = tag
        self.attributes = {name: value or "" for name, value in attributes}
        self.within = within  # ids of the elements around it
        self.text = ""

    def __getitem__(self, name: str) -> str:
        return self.attributes.get(name, "")


class Page(HTMLParser):
    """A page as a parser sees it."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.source = text
        self.elements: list[Element] = []
        self.rows: list[list[str]] = []  # of all tables: the texts of their cells
        self._open: list[Element] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, attrs, tuple(e["id"] for e in self._open if e["id"]))
        self.elements.append(element)
        if tag == "tr":
            self.rows.append([])
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, attrs, tuple(e["id"] for e in self._open if e["id"])))

    def handle_endtag(self, tag: str) -> None:
        if not any(element.tag == tag for element in self._open):
            return
        while (last := self._open.pop()).tag != tag:
            pass
        if tag in ("td", "th"):
            self.rows[-1].append(" ".join(last.text.split()))

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def all(self, tag: str, within: str | None = None) -> list[Element]:
        """Elements of a kind, in their order; those in the element with an id alone, where one is named."""
        return [e for e in self.elements if e.tag == tag and (within is None or within in e.within)]

    def links(self, start: str = "", within: str | None = None) -> list[str]:
        """Where links lead that begin in a way."""
        return [a["href"] for a in self.all("a", within) if a["href"].startswith(start)]

    @property
    def title(self) -> str:
        """The first heading."""
        return self.all("h1")[0].text.strip()

    @property
    def words(self) -> str:
        """The text of the page's own part, each run of white space as one blank."""
        return " ".join(next(e for e in self.elements if e["id"] == "main").text.split())

    @property
    def data(self) -> list[Any]:
        """What charts are drawn from."""
        return [json.loads(e.text) for e in self.all("script") if e["type"] == "application/json"]

    def row(self, *texts: str) -> list[str]:
        """The first row of a table of which each text is in some cell."""
        return next(row for row in self.rows if all(any(text in cell for cell in row) for text in texts))


# ------------------------------------------------------------------------------------------------- a browser


class Answer(NamedTuple):
    """An answer as the application sent it."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """The value of a header; None where there is none."""
        return next((value for key, value in self.headers if key == name), None)


class Browser:
    """Asks an application in a thread with a loop of its own, as a server does."""

    def __init__(self, app: Any, base: str = "http://localhost") -> None:
        self.app = app
        self._ending = ExitStack()
        self._portal = self._ending.enter_context(start_blocking_portal())
        self._ending.enter_context(self._portal.wrap_async_context_manager(app.router.lifespan_context(app)))
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=True)
        self._client = httpx2.AsyncClient(transport=transport, base_url=base)
        self._ending.callback(lambda: self._portal.call(self._client.aclose))

    def close(self) -> None:
        """End the application."""
        self._ending.close()

    def __call__(self, method: str, path: str, **more: Any) -> httpx2.Response:
        async def ask() -> httpx2.Response:
            return await self._client.request(method, path, **more)

        return self._portal.call(ask)

    def get(self, path: str, *, html: bool = True, **more: Any) -> httpx2.Response:
        """An answer; as to a browser, or as to a program."""
        accept = "text/html" if html else "*/*"
        return self("GET", path, headers={"accept": accept, **more.pop("headers", {})}, **more)

    def page(self, path: str, status: int = 200, **more: Any) -> Page:
        """A page."""
        answer = self.get(path, **more)
        assert answer.status_code == status, (path, answer.status_code, answer.text[:500])
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        return Page(answer.text)

    def json(self, path: str, **more: Any) -> Any:
        """JSON, whose numbers are numbers."""
        answer = self.get(path, html=False, **more)
        assert answer.status_code == 200, (path, answer.status_code, answer.text[:500])
        assert answer.headers["content-type"] == "application/json"
        return json.loads(answer.text, parse_constant=_no_number)

    def rows(self, path: str, **more: Any) -> list[dict[str, Any]]:
        """The rows of a table as JSON."""
        return list(self.json(path, **more)["rows"])

    def raw(
        self,
        method: str = "GET",
        path: str = "/",
        *,
        headers: Sequence[tuple[str, str]] = (),
        host: str | None = "localhost",
        body: Sequence[bytes] = (b"",),
        query: str = "",
        app: Any = None,
    ) -> Answer:
        """An answer to exactly these bytes, however wrong they are. What the application raises is passed over."""
        given = [*([("host", host)] if host is not None else []), *headers]
        scope = _scope(method, path, query, given)
        sent: list[Any] = []

        async def ask() -> None:
            waiting = [
                {"type": "http.request", "body": part, "more_body": number < len(body) - 1}
                for number, part in enumerate(body)
            ]

            async def receive() -> Any:
                return waiting.pop(0) if waiting else {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                sent.append(message)

            await (app or self.app)(scope, receive, send)

        try:
            self._portal.call(ask)
        except Exception:
            if not sent:  # starlette raises again what it answered with a 500
                raise
        answered = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in sent[0]["headers"]]
        return Answer(sent[0]["status"], answered, b"".join(message.get("body", b"") for message in sent[1:]))

    @contextmanager
    def listening(self, path: str) -> Iterator[Listener]:
        """Events as they come. Leaving it hangs up."""
        listener = Listener(self._portal, self.app, _scope("GET", path, "", [("host", "localhost")]))
        try:
            yield listener
        finally:
            listener.hang_up()


class Listener:
    """Somebody who listens to a stream of events."""

    def __init__(self, portal: Any, app: Any, scope: Mapping[str, Any]) -> None:
        self._portal = portal
        self._send, self._receive = portal.call(anyio.create_memory_object_stream, 100)
        self._gone = portal.call(anyio.Event)
        self._asked = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self._done = portal.start_task_soon(self._run, app, scope)
        start = self._next()
        self.status = start["status"]
        self.headers = {name.decode(): value.decode() for name, value in start["headers"]}

    async def _run(self, app: Any, scope: Mapping[str, Any]) -> None:
        async def receive() -> Any:
            if not self._asked:
                self._asked = True
                return {"type": "http.request", "body": b"", "more_body": False}
            await self._gone.wait()
            return {"type": "http.disconnect"}

        async with self._send:
            await app(scope, receive, self._send.send)

    def _next(self) -> Any:
        async def wait() -> Any:
            with anyio.fail_after(20):
                return await self._receive.receive()

        return self._portal.call(wait)

    def event(self) -> tuple[str, Any] | None:
        """The next event: its kind and data; None at the end."""
        while True:
            message = self._next()
            text = message.get("body", b"").decode()
            if text.startswith("event: "):
                kind, data = text.removesuffix("\n\n").split("\n")
                return kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))
            if not message.get("more_body"):
                return None

    def hang_up(self) -> None:
        """Go, and wait until the application has noticed."""
        self._portal.call(self._gone.set)
        self._done.result(timeout=20)
        self._portal.call(self._receive.aclose)


def _scope(method: str, path: str, query: str, headers: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode("latin-1"),
        "query_string": query.encode("latin-1"),
        "root_path": "",
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        "client": ("127.0.0.1", 1234),
        "server": ("127.0.0.1", 80),
    }


def _no_number(word: str) -> Any:
    raise AssertionError(f"{word} is no JSON")
