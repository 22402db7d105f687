"""Tells listeners when a run changes, as server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from fastapi import HTTPException
from starlette.concurrency import run_in_threadpool

from kernelwright.errors import StoreError
from kernelwright.leaderboard._runs import Latest

MOST_LISTENERS = 256
_BEAT_S = 15.0
_LOOK_S = 0.2  # between two checks whether the server ends


class RunEvents:
    """Counts listeners and writes their events.

    Args:
        poll_s: seconds between two queries of the store.
        ending: whether the server is about to end. The streams then close.
    """

    def __init__(self, *, poll_s: float, ending: Callable[[], bool]) -> None:
        self._poll_s = poll_s
        self._ending = ending
        self._listeners = 0

    def told(self, look: Callable[[], Latest | None], is_gone: Callable[[], Awaitable[bool]]) -> AsyncIterator[str]:
        """The events of a run until it ends or the listener goes.

        Args:
            look: reads the run's latest state from the store; None if the run is gone.

        Raises:
            HTTPException: there are too many listeners.
        """
        if self._listeners >= MOST_LISTENERS:
            raise HTTPException(503, "too many listeners")
        return self._told(look, is_gone)

    async def _told(
        self, look: Callable[[], Latest | None], is_gone: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[str]:
        self._listeners += 1
        try:
            seen, beat_s = None, time.monotonic()
            while not (self._ending() or await is_gone()):
                try:
                    now = await run_in_threadpool(look)
                except StoreError:  # the listener connects again, and gets the error
                    return
                if now is None:
                    return
                if now != seen:
                    seen = now
                    yield f'event: changed\ndata: {{"evaluation":"{now.evaluation}","status":"{now.status}"}}\n\n'
                if now.status != "running":
                    yield f'event: end\ndata: {{"status":"{now.status}"}}\n\n'
                    return
                if time.monotonic() - beat_s > _BEAT_S:
                    beat_s = time.monotonic()
                    yield ": still here\n\n"
                until_s = time.monotonic() + self._poll_s
                while (left_s := until_s - time.monotonic()) > 0 and not self._ending():
                    await asyncio.sleep(min(left_s, _LOOK_S))
        finally:
            self._listeners -= 1
