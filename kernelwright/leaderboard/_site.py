"""Templates with shared context, assets whose addresses contain a hash, and links that keep the query."""

from __future__ import annotations

import gzip
import hashlib
import json
import mimetypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from kernelwright import __version__
from kernelwright.leaderboard import _cells
from kernelwright.leaderboard._cells import path_of
from kernelwright.leaderboard._highlight import highlight
from kernelwright.leaderboard._reader import Reader
from kernelwright.leaderboard._tables import finite

_HERE = Path(__file__).parent
_WITH_PATHS = ("replay", "mailbox", "policy")
_FOREVER = "public, max-age=31536000, immutable"


class Assets:
    """The files under ``static``, read once. Requested paths never reach the file system."""

    def __init__(self) -> None:
        folder = _HERE / "static"
        files = [
            path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in (".js", ".css", ".svg")
        ]
        self._bodies = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
        self._zipped = {name: gzip.compress(body, 9, mtime=0) for name, body in self._bodies.items()}
        self._hashes = {name: hashlib.sha256(body).hexdigest()[:16] for name, body in self._bodies.items()}

    def address(self, name: str) -> str:
        """The address of an asset. Raises KeyError if there is no such asset."""
        return f"/static/{self._hashes[name]}/{name}"

    def answer(self, tag: str, name: str, *, zipped: bool = False) -> Response | None:
        """The asset if its hash is ``tag``, else None. ``zipped``: the client accepts gzip."""
        if self._hashes.get(name) != tag:
            return None
        kind = mimetypes.guess_type(name)[0] or "text/plain"
        headers = {"Cache-Control": _FOREVER, "Vary": "Accept-Encoding"}
        if zipped:
            return Response(self._zipped[name], media_type=kind, headers={**headers, "Content-Encoding": "gzip"})
        return Response(self._bodies[name], media_type=kind, headers=headers)


class Site:
    """The reader of the store and the templates, for all routes.

    Attributes:
        reader: the store.
        accepts_submissions: whether there is a page for submissions.
    """

    def __init__(self, reader: Reader, *, accepts_submissions: bool) -> None:
        self.reader = reader
        self.assets = Assets()
        self.accepts_submissions = accepts_submissions
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=select_autoescape(default=True, default_for_string=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals |= {
            "asset": self.assets.address,
            "version": __version__,
            "store_name": reader.path.name,
            "accepts_submissions": accepts_submissions,
            "cells": _cells,
            "highlight": highlight,
            "path_of": path_of,
            "query_of": urlencode,
        }
        self._templates.filters |= {"data": json_data, "spec": spec_of}

    def prepare(self) -> None:
        """Compile all templates and import what some pages need, so that the first reader does not wait."""
        import scipy.special  # noqa: F401 - a tenth of a second, where two runs are compared

        import kernelwright.campaign  # noqa: F401 - half a second, for three pages

        for name in self._templates.list_templates():
            self._templates.get_template(name)
        highlight("x = 1", "python")

    def page(self, request: Request, template: str, status: int = 200, **context: Any) -> HTMLResponse:
        """A page. Lone surrogates (a model may write them) become question marks."""
        text = self.text(request, template, **context)
        return HTMLResponse(text.encode("utf-8", "replace"), status_code=status)

    def text(self, request: Request, template: str, **context: Any) -> str:
        """The text of a rendered template."""
        return self._templates.get_template(template).render(link=linker(request), request=request, **context)


def linker(request: Request) -> Callable[..., str]:
    """Return a function that links to the same page with changed query values; None removes a name."""
    path = path_of(request.scope["path"].removeprefix("/"))  # request.url does not quote the path as it was

    def link(**changes: Any) -> str:
        changed = request.url.remove_query_params(list(changes))
        kept = {name: str(value) for name, value in changes.items() if value is not None}
        changed = changed.include_query_params(**kept) if kept else changed
        return f"{path}?{changed.query}" if changed.query else path

    return link


def spec_of(spec: str) -> str:
    """A coder's or judge's specification. Folders of a path in it are private, and are left out."""
    kind, colon, where = spec.partition(":")
    return f"{kind}:{where.rstrip('/').rpartition('/')[2]}" if colon and "/" in where and kind in _WITH_PATHS else spec


def author_of(spec: str) -> str:
    """The author of a coder's kernels: its specification, or only the kind if a path follows."""
    kind = spec.partition(":")[0]
    return kind if kind in _WITH_PATHS else spec


def json_data(value: Any) -> str:
    """JSON that is safe inside a script element: no part of it can end the element."""
    from markupsafe import Markup

    text = json.dumps(finite(value), allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def given(**query: Any) -> Mapping[str, Any]:
    """The parts of a query that have a value."""
    return {name: value for name, value in query.items() if value not in (None, "")}
