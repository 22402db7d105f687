"""The common part of providers that bill for their replies."""

from __future__ import annotations

import contextlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar

import httpx2

from kernelwright.agents.llm._connections import Connections, end_by
from kernelwright.agents.llm._translate import NoStream, Service, Unreadable, model_fault
from kernelwright.agents.llm._types import Parameters, Reply, Request, Stop, Usage
from kernelwright.errors import UsageError

CONNECT_TIMEOUT_S = 10.0
NO_KEY = "none"  # sent to servers that need no key, since the SDKs require one
_NO_STREAMS = frozenset({"application/json", "text/html"})
_SHORTEST_SECRET = 8  # characters; shorter keys are dummy words for local servers, which also occur in other words


@dataclass
class Draft:
    """The state of a reply, besides its text, while it arrives. ``stop`` is set when the reply is complete."""

    begun: bool = False
    model: str = ""
    tokens: dict[str, int] = field(default_factory=dict)
    usage: Usage | None = None
    reason: str = ""
    refused: bool = False
    stop: Stop | None = None


class MeteredProvider(ABC):
    """Streams replies from a vendor's SDK and translates its faults. Safe to use from several threads."""

    name: str
    metered = True
    key_name: ClassVar[str]
    # Parameters that the provider sets itself, or that would change what a token costs.
    reserved: ClassVar[frozenset[str]]
    sdk: ModuleType
    sdk_error: type[Exception]

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None,
        base_url: str,
        timeout_s: float,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        http_client: httpx2.Client | None = None,
    ) -> None:
        """Connect to nothing yet.

        Args:
            api_key: None for a server that needs none.
            timeout_s: limit for silence and for a whole reply.
            http_client: the client whose connections to use; the caller closes it.
        """
        self.model = model
        self._connections = None if http_client is not None else Connections(timeout_s, connect_timeout_s)
        self._client = self._make_client(
            api_key=api_key or NO_KEY,
            base_url=base_url,
            timeout=httpx2.Timeout(timeout_s, connect=connect_timeout_s),
            max_retries=0,  # the budget must reserve for each retry
            http_client=self._connections.client if self._connections is not None else http_client,
        )
        self._service = Service(f"{self.name}:{model}", base_url, self.key_name, self.sdk, _secrets(api_key), timeout_s)

    @abstractmethod
    def _make_client(self, **arguments: Any) -> Any:
        """The SDK's client."""

    @abstractmethod
    def _open(self, request: Request) -> Any:
        """Send a request; returns the SDK's stream of its reply."""

    @abstractmethod
    def _read(self, event: Any, draft: Draft) -> str:
        """The text of one event, which may be empty. The other facts of the event go into ``draft``."""

    def _whole(self, body: Mapping[str, Any], draft: Draft) -> str:
        """The text of a reply that came as one object although a stream was requested.

        Raises:
            NoStream: the object is not a reply.
        """
        raise NoStream("the answer is application/json, no event stream", body)

    def send(self, request: Request, *, on_text: Callable[[int], None] = lambda characters: None) -> Reply:
        """The reply to one request, which is sent once and never retried.

        Args:
            on_text: called with the number of characters received so far, for each piece of the reply.

        Raises:
            ModelFault: there is no reply.
            UsageError: a parameter that cannot be passed on.
        """
        self._refuse(request.parameters)
        started = time.monotonic()
        draft = Draft()
        text: list[str] = []
        characters = 0
        with contextlib.closing(self._pieces(request, draft, started + self._service.timeout_s)) as pieces:
            while (piece := self._next(pieces, draft)) is not None:
                text.append(piece)
                characters += len(piece)
                if piece:
                    on_text(characters)
        if draft.stop is None:
            raise model_fault(Unreadable("it ended without saying why"), self._service, begun=True, closed=False)
        stop: Stop = "refused" if draft.refused else draft.stop
        return Reply("".join(text), stop, draft.usage, time.monotonic() - started, draft.model)

    def close(self) -> None:
        """Close the connections. Requests in flight fail."""
        if self._connections is not None:
            self._connections.close()

    def _refuse(self, parameters: Parameters) -> None:
        for name in parameters:
            if name in self.reserved:
                raise UsageError(f"{self._service.spec} takes no parameter {name!r}", hint="leave it out", key=name)

    def _pieces(self, request: Request, draft: Draft, deadline: float) -> Generator[str, None, None]:
        stream = self._open(request)
        with stream:
            end_by(stream.response, deadline)
            kind = str(stream.response.headers.get("content-type", "")).partition(";")[0].strip().lower()
            if kind in _NO_STREAMS:
                yield self._answer(stream.response, kind, draft)
                return
            draft.begun = True
            for event in _sound(stream):
                try:
                    piece = self._read(event, draft)
                except (AttributeError, TypeError, ValueError) as error:  # the SDKs build events without checking them
                    raise Unreadable("an event lacks what its kind has") from error
                yield piece

    def _answer(self, response: Any, kind: str, draft: Draft) -> str:
        """The text of an answer that is not a stream."""
        try:
            body = json.loads(response.read()) if kind == "application/json" else None
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise NoStream(f"the answer is {kind}, no event stream: is the base URL right?")
        if body.get("error"):
            raise NoStream("the answer is an error", body)
        try:
            return self._whole(body, draft)
        except (AttributeError, TypeError, ValueError) as error:
            raise Unreadable("the answer lacks what a reply has") from error

    def _next(self, pieces: Iterator[str], draft: Draft) -> str | None:
        """The next piece, or None at the end. Faults are raised without context, since SDK errors hold the key."""
        try:
            return next(pieces, None)
        except (self.sdk_error, httpx2.HTTPError, Unreadable, NoStream, OSError) as error:
            fault = model_fault(error, self._service, begun=draft.begun, closed=self._closed)
        except RuntimeError as error:  # the client raises it after it is closed
            if not self._closed:
                raise
            fault = model_fault(error, self._service, begun=draft.begun, closed=True)
        raise fault

    @property
    def _closed(self) -> bool:
        return self._connections is not None and self._connections.closed


def _secrets(key: str | None) -> tuple[str, ...]:
    """Texts that must never be shown."""
    return (key,) if key and len(key) >= _SHORTEST_SECRET else ()


def _sound(stream: Iterable[Any]) -> Iterator[Any]:
    """The events of a stream. Raises Unreadable for a line that is not valid text or JSON."""
    try:
        yield from stream
    except ValueError as error:
        raise Unreadable("a line is no JSON or no text") from error


def count(value: object) -> int:
    """A number of tokens, 0 for None. Raises TypeError for any other value."""
    if value is None:
        return 0
    if not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r} is no number of tokens")
    return value
