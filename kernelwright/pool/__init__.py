"""Where candidates are judged: here, in a Ray cluster, or by workers that are reached only by files.

A run asks a :class:`Pool` self-contained jobs and gets answers. A :class:`Seat` answers one job at a time.
"""

from __future__ import annotations

from kernelwright.pool._dispatch import Dispatcher, PoolState
from kernelwright.pool._jobs import Answer, Card, Depth, Fault, Job, judged_unless, method_of, version
from kernelwright.pool._pack import pack, unpack
from kernelwright.pool._pool import LOCAL, OpenPool, Pool, PooledReferee, checked_pool, closing_pool, open_pool
from kernelwright.pool._seat import OwnSeat, Seat, SeatLost
from kernelwright.pool._sessions import OpenReferee, Sessions, once_more, open_local_referee
from kernelwright.pool._spool import ANSWER_SUFFIX, SpoolFolder
from kernelwright.pool._spool_pool import SpoolPool
from kernelwright.pool._worker import Worker

__all__ = [
    "ANSWER_SUFFIX",
    "LOCAL",
    "Answer",
    "Card",
    "Depth",
    "Dispatcher",
    "Fault",
    "Job",
    "OpenPool",
    "OpenReferee",
    "OwnSeat",
    "Pool",
    "PoolState",
    "PooledReferee",
    "Seat",
    "SeatLost",
    "Sessions",
    "SpoolFolder",
    "SpoolPool",
    "Worker",
    "checked_pool",
    "closing_pool",
    "judged_unless",
    "method_of",
    "once_more",
    "open_local_referee",
    "open_pool",
    "pack",
    "unpack",
    "version",
]
