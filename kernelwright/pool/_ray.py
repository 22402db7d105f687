"""Seats of a Ray cluster: an actor for each GPU, or for each node if no node has one.

An actor opens no device itself. It starts sandboxed workers, as the referee does on one machine. It is pinned to its
node and never restarted by Ray: when it is lost, the dispatcher asks for a new seat, on whichever nodes live then.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from kernelwright.config import Settings
from kernelwright.errors import MissingToolError, UsageError
from kernelwright.pool._jobs import Answer, Card, Fault, Job
from kernelwright.pool._seat import OwnSeat, SeatLost
from kernelwright.pool._sessions import OpenReferee, open_local_referee
from kernelwright.records.codec import dump_json

_OPEN_S: Final = 300.0  # an actor's start, which imports torch and opens a sandbox
_JOB_S: Final = 3600.0  # the longest job; the referee's own limits are far below
_KNOCK_S: Final = 5.0
_SLOTS: Final = "kernelwright"  # a node's resource that says how many seats it offers


class _Place(NamedTuple):
    """Where a seat is: a node and the resources that it takes there."""

    node: str
    options: Mapping[str, Any]


class RayRoster:
    """The seats of a Ray cluster.

    Args:
        address: of a running cluster; empty for the one that ``RAY_ADDRESS`` names, else a new one on this machine.
        resource: use only nodes with this resource, such as ``sm_90``; empty for any.
        gpus: take a GPU for each seat, on nodes that have some.
        threads: processors that a seat without a GPU takes.
        open_referee: makes the referees of actors.

    Raises:
        MissingToolError: Ray is not installed.
        UsageError: there is no cluster at the address.
    """

    kind = "ray"

    def __init__(
        self,
        address: str = "",
        resource: str = "",
        *,
        gpus: bool = False,
        threads: int = 1,
        open_referee: OpenReferee = open_local_referee,
    ) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray = importlib.import_module("ray")
        except ImportError:
            raise MissingToolError("Ray is not installed", hint="pip install 'kernelwright[ray]'") from None
        self._ray: Any = ray
        self._resource = resource
        self._gpus = gpus
        self._threads = threads
        self._open_referee = open_referee
        self._places: dict[str, _Place] = {}
        self._owns = not ray.is_initialized()
        if self._owns:
            given = address or os.environ.get("RAY_ADDRESS") or None
            try:
                _knock(given or "")
                quiet = {} if given else {"include_dashboard": False}
                ray.init(address=given, log_to_driver=False, logging_level="ERROR", **quiet)
            except (OSError, ValueError, RuntimeError) as error:
                raise UsageError(
                    f"no Ray cluster answers at {given or 'this machine'}: {_said(error)}",
                    hint="start one with 'ray start --head', or give --pool ray:HOST:PORT",
                ) from error

    def names(self) -> Sequence[str]:
        """See :class:`Roster`."""
        try:
            nodes = self._ray.nodes()
        except Exception as error:
            raise SeatLost(_said(error)) from error
        alive = [node for node in nodes if node["Alive"]]
        if self._resource:
            alive = [node for node in alive if node["Resources"].get(self._resource)]
        if self._gpus and any(node["Resources"].get("GPU") for node in alive):
            alive = [node for node in alive if node["Resources"].get("GPU")]
        self._places = dict(place for node in alive for place in self._of(node))
        return tuple(self._places)

    def _of(self, node: Mapping[str, Any]) -> list[tuple[str, _Place]]:
        has = node["Resources"]
        options: dict[str, Any] = {"num_cpus": 0, "resources": {self._resource: 1} if self._resource else {}}
        if self._gpus and has.get("GPU"):
            count, options = int(has["GPU"]), {**options, "num_gpus": 1}
        elif _SLOTS in has:
            count = int(has[_SLOTS])
            options["resources"] = {**options["resources"], _SLOTS: 1}
        else:
            count, options["num_cpus"] = 1, self._threads
        name = f"{node.get('NodeManagerHostname', 'node')}:{node['NodeID'][:8]}"
        return [(f"{name}/{number}", _Place(node["NodeID"], options)) for number in range(count)]

    def seat(self, name: str) -> RaySeat:
        """See :class:`Roster`."""
        return RaySeat(self._ray, name, self._places[name], self._open_referee)

    def close(self) -> None:
        """See :class:`Roster`. A cluster that was started here ends."""
        if self._owns:
            self._ray.shutdown()


class RaySeat:
    """A seat that is an actor of a Ray cluster."""

    def __init__(self, ray: Any, name: str, place: _Place, open_referee: OpenReferee) -> None:
        self._open_referee = open_referee
        self._ray: Any = ray
        self._place = place
        self._actor: Any = None
        self.name = name

    def open(self) -> Card:
        """See :class:`Seat`."""
        strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
        pinned = strategies.NodeAffinitySchedulingStrategy(self._place.node, soft=False)
        options = {"max_concurrency": 1, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": pinned}
        self._actor = (
            self._ray.remote(Actor).options(**options, **self._place.options).remote(self.name, self._open_referee)
        )
        found = json.loads(self._asked(self._actor.card.remote(), _OPEN_S))
        if "fault" in found:
            raise Fault.model_validate(found["fault"]).error(self.name)
        return Card.model_validate(found)

    def answer(self, job: Job, on_stage: Callable[[str], None], soon: Sequence[Job] = ()) -> Answer:
        """See :class:`Seat`."""
        asked = self._actor.answer.remote(job.text, [one.text for one in soon])
        return Answer.model_validate_json(self._asked(asked, _JOB_S))

    def close(self) -> None:
        """See :class:`Seat`."""
        if self._actor is not None:
            with suppress(Exception):
                self._ray.kill(self._actor)

    def _asked(self, reference: Any, within_s: float) -> str:
        try:
            return str(self._ray.get(reference, timeout=within_s))
        except Exception as error:
            self.close()
            raise SeatLost(_said(error)) from error


class Actor:
    """The remote end of a :class:`RaySeat`: a seat in a process of a Ray node, which speaks JSON."""

    def __init__(self, name: str, open_referee: OpenReferee) -> None:
        self._seat = OwnSeat(Settings.load(), open_referee, name=name)

    def card(self) -> str:
        """The seat's card, or its fault, as JSON."""
        try:
            return dump_json(self._seat.open())
        except Exception as error:  # noqa: BLE001 - it is raised again by the driver
            return dump_json({"fault": Fault.of(error).model_dump()})

    def answer(self, text: str, soon: Sequence[str] = ()) -> str:
        """The answer to a job, both as JSON."""
        jobs = [Job.model_validate_json(one) for one in (text, *soon)]
        return dump_json(self._seat.answer(jobs[0], soon=jobs[1:]))


def _knock(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT. Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S).close()


def _said(error: BaseException) -> str:
    """The first line of an error of Ray, which may be very long."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:300]
