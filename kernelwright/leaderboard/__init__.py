"""The leaderboard: pages and JSON over a store that is only ever read, with the evidence behind every number.

Importing this is cheap; FastAPI and Pygments come with :func:`create_app`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwright.leaderboard._serve import ServeOptions, serve

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["ServeOptions", "create_app", "serve"]


def create_app(store: Path, **options: Any) -> FastAPI:
    """The leaderboard of a store as an ASGI application; the options are those of ``_app.create_app``."""
    from kernelwright.leaderboard._app import create_app as made

    return made(store, **options)
