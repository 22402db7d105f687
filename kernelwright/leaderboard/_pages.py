"""Pages as classes: methods that answer requests to paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter

from kernelwright.leaderboard._site import Site

Method = TypeVar("Method", bound=Callable[..., Any])
_ROUTES = "_kernelwright_routes"


def get(path: str, **options: Any) -> Callable[[Method], Method]:
    """A decorator: the method answers GET requests at ``path``. ``options`` are those of FastAPI's routes."""
    return _answers("GET", path, options)


def post(path: str, **options: Any) -> Callable[[Method], Method]:
    """As :func:`get`, for POST requests."""
    return _answers("POST", path, options)


def _answers(verb: str, path: str, options: dict[str, Any]) -> Callable[[Method], Method]:
    def mark(method: Method) -> Method:
        vars(method).setdefault(_ROUTES, []).append((verb, path, options))
        return method

    return mark


class Pages:
    """A group of pages. Subclasses have methods marked by :func:`get` and :func:`post`, and a ``tag``."""

    tag = ""

    def __init__(self, site: Site) -> None:
        self._site = site

    def router(self) -> APIRouter:
        """The routes, in the order in which the methods are defined."""
        router = APIRouter(tags=[self.tag])
        for name, method in vars(type(self)).items():
            for verb, path, options in vars(method).get(_ROUTES, ()) if callable(method) else ():
                router.add_api_route(path, getattr(self, name), methods=[verb], **options)
        return router
