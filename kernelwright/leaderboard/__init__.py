"""The leaderboard: pages and JSON over a store, with the evidence behind every number. The store is only read.

Importing this package is cheap: :func:`create_app` imports FastAPI and Pygments.
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
