"""A loopback server that speaks both vendors' interfaces, and fails in their ways when its script says so.

``serve(script)`` gives a :class:`ModelServer`. The script is asked about each request (:class:`Asked`) and returns what
happens: an :class:`Answer`, or one of the faults. It may be called by several threads at once.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, NamedTuple

Vendor = Literal["openai", "anthropic"]

# ------------------------------------------------------------------------------------------------ asked and answered


class Tokens(NamedTuple):
    """What a reply is billed as. ``input`` is all of the prompt; ``cached`` and ``written`` are parts of it."""

    input: int
    output: int
    cached: int = 0
    written: int = 0
    reasoning: int = 0


USUAL = Tokens(100, 20)


class Asked(NamedTuple):
    """One request, as either vendor's interface says it. ``number`` counts the requests of a server from 0."""

    number: int
    vendor: Vendor
    model: str
    system: str
    messages: tuple[tuple[str, str], ...]  # role and text
    schema: dict[str, Any] | None
    max_output_tokens: int | None
    stream: bool
    body: dict[str, Any]
    headers: dict[str, str]  # names in lower case

    @property
    def text(self) -> str:
        """All that the model is told."""
        return "\n".join([self.system, *(text for _, text in self.messages)])


@dataclass(frozen=True)
class Answer:
    """A reply. ``usage`` None: the server doesn't say. ``pieces``: into how many events a streamed text is cut."""

    text: str
    usage: Tokens | None = USUAL
    stop: Literal["complete", "length", "refused"] = "complete"
    thinking: str = ""
    pieces: int = 3


@dataclass(frozen=True)
class Refusal:
    """An error in place of a reply. ``param`` and ``code`` are OpenAI's; ``type`` is either vendor's."""

    status: int
    message: str = "no"
    type: str = ""
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None  # in place of the vendor's form


@dataclass(frozen=True)
class StreamError:
    """A stream that has begun and goes on with an error of the vendor's."""

    type: str
    message: str = "no"
    code: str | int | None = None


@dataclass(frozen=True)
class Cut:
    """A stream that stops in the middle: ``broken`` without the end of the transfer, else as if it were whole."""

    text: str = '{"half'
    broken: bool = True


@dataclass(frozen=True)
class Raw:
    """Bytes after the headers of a reply that succeeded."""

    data: bytes
    content_type: str = "text/event-stream"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Hang:
    """Nothing comes, until the server is told to let go or closed."""


@dataclass(frozen=True)
class Comments:
    """Comments that keep the connection alive, and nothing else, until the client hangs up."""


@dataclass(frozen=True)
class Hangup:
    """The connection closes before a reply begins."""


Fault = Refusal | StreamError | Cut | Raw | Hang | Comments | Hangup
Script = Callable[[Asked], Answer | Fault]


def rate_limited(**headers: str) -> Refusal:
    """429; headers by name with underscores: ``retry_after="7"``."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Refusal(429, "slow down", "rate_limit_error", headers=named)


def overloaded() -> Refusal:
    """529, as Anthropic says it."""
    return Refusal(529, "Overloaded", "overloaded_error")


def not_supported(name: str, param: str | None = None) -> Refusal:
    """400 for a parameter that the server doesn't know."""
    return Refusal(400, f"Unsupported parameter: '{name}'", "invalid_request_error", param, "unsupported_parameter")


# ------------------------------------------------------------------------------------------------ the server


class Totals(NamedTuple):
    """What a model has been billed for."""

    replies: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class ModelServer:
    """Counts exactly and keeps every request. All of it may be read while requests are in flight."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._lock = threading.Lock()
        self._asked: list[Asked] = []
        self._totals: dict[str, Totals] = {}
        self._statuses: Counter[int] = Counter()
        self._connections: set[socket.socket] = set()
        self._closing = False
        self._released = threading.Event()
        self.arrived = threading.Semaphore(0)  # released once for each request, so that a test can wait for it
        self._http = _Http(self)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def origin(self) -> str:
        """Scheme, address and port."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def openai_base_url(self) -> str:
        """For clients of chat completions."""
        return f"{self.origin}/v1"

    @property
    def anthropic_base_url(self) -> str:
        """For clients of messages."""
        return self.origin

    @property
    def asked(self) -> tuple[Asked, ...]:
        """Every request that was received, in the order of arrival."""
        with self._lock:
            return tuple(self._asked)

    @property
    def totals(self) -> dict[str, Totals]:
        """What each model is billed for: replies that were completed and whose usage was said."""
        with self._lock:
            return dict(self._totals)

    @property
    def statuses(self) -> Counter[int]:
        """How many responses began with each HTTP status."""
        with self._lock:
            return Counter(self._statuses)

    def let_go(self) -> None:
        """End every :class:`Hang`, those to come included."""
        self._released.set()

    def close(self) -> None:
        """Stop, and cut all connections."""
        self.let_go()
        self._http.shutdown()
        self._thread.join()
        with self._lock:
            self._closing = True
            for connection in self._connections:
                _shut(connection)
        self._http.server_close()  # waits for the threads of the connections

    # What follows is for the handler.

    def receive(self, vendor: Vendor, body: dict[str, Any], headers: dict[str, str]) -> Asked:
        with self._lock:
            asked = _read_request(len(self._asked), vendor, body, headers)
            self._asked.append(asked)
        self.arrived.release()
        return asked

    def began(self, status: int) -> None:
        with self._lock:
            self._statuses[status] += 1

    def bill(self, model: str, usage: Tokens | None) -> None:
        if usage is None:
            return
        with self._lock:
            before = self._totals.get(model, Totals())
            self._totals[model] = Totals(
                before.replies + 1, before.input_tokens + usage.input, before.output_tokens + usage.output
            )

    def wait(self) -> None:
        self._released.wait()

    def opened(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.add(connection)
            if self._closing:
                _shut(connection)

    def ended(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)


@contextlib.contextmanager
def serve(script: Script) -> Iterator[ModelServer]:
    """A server that answers until the block ends."""
    server = ModelServer(script)
    try:
        yield server
    finally:
        server.close()


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the client was quicker
        connection.shutdown(socket.SHUT_RDWR)


def _read_request(number: int, vendor: Vendor, body: dict[str, Any], headers: dict[str, str]) -> Asked:
    turns = tuple((turn["role"], _plain(turn["content"])) for turn in body.get("messages", ()))
    if vendor == "openai":
        system = "\n".join(text for role, text in turns if role in ("system", "developer"))
        turns = tuple(turn for turn in turns if turn[0] not in ("system", "developer"))
        schema = (body.get("response_format") or {}).get("json_schema", {}).get("schema")
        limit = body.get("max_completion_tokens", body.get("max_tokens"))
    else:
        system = _plain(body.get("system", ""))
        schema = ((body.get("output_config") or {}).get("format") or {}).get("schema")
        limit = body.get("max_tokens")
    stream = bool(body.get("stream"))
    return Asked(number, vendor, body["model"], system, turns, schema, limit, stream, body, headers)


def _plain(content: Any) -> str:
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


class _Http(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, owner: ModelServer) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients hang up; nothing is printed for it."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave together
    server: _Http

    def setup(self) -> None:
        super().setup()
        self.server.owner.opened(self.connection)

    def finish(self) -> None:
        self.server.owner.ended(self.connection)
        with contextlib.suppress(OSError):  # what is still to be flushed goes nowhere
            super().finish()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        path = self.path.partition("?")[0]
        vendors: dict[str, Vendor] = {"/v1/chat/completions": "openai", "/v1/messages": "anthropic"}
        if path not in vendors:
            self._refuse(Refusal(404, f"no such path: {path}", "not_found_error"), "openai")
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = self.server.owner.receive(vendors[path], body, headers)
        if "authorization" not in headers:
            self._refuse(Refusal(401, "no key", "authentication_error"), asked.vendor)
            return
        with contextlib.suppress(ConnectionError):
            self._do(asked, _forbidden(asked) or self.server.owner.script(asked))

    def _do(self, asked: Asked, deed: Answer | Fault) -> None:
        match deed:
            case Refusal():
                self._refuse(deed, asked.vendor)
            case Hangup():
                self.close_connection = True
            case Hang():
                self.server.owner.wait()
                self.close_connection = True
            case Raw():
                self._begin(200, {"content-type": deed.content_type, **deed.headers})
                self._chunk(deed.data)
                self._end()
            case Comments():
                self._begin(200, {"content-type": "text/event-stream"})
                while True:
                    self._chunk(b": still here\n\n")
            case StreamError():
                self._stream(asked, Answer('{"half', None), after=[_error_event(asked.vendor, deed)])
            case Cut():
                self._stream(asked, Answer(deed.text, None), after=[], whole=not deed.broken)
            case Answer() if asked.stream:
                self._stream(asked, deed)
            case Answer():
                self._whole(asked, deed)

    def _stream(self, asked: Asked, answer: Answer, *, after: list[bytes] | None = None, whole: bool = True) -> None:
        """Send an answer in events; where ``after`` is given, that stands in place of how an answer ends."""
        events = _chat_events if asked.vendor == "openai" else _message_events
        middle, last = events(asked, answer)
        self._begin(200, {"content-type": "text/event-stream; charset=utf-8"})
        for event in middle:
            self._chunk(event)
        if after is None:  # before the client can know that it has all
            said = asked.vendor == "anthropic" or (asked.body.get("stream_options") or {}).get("include_usage")
            self.server.owner.bill(asked.model, answer.usage if said else None)
        for event in last if after is None else after:
            self._chunk(event)
        if whole:
            self._end()
        else:
            self.close_connection = True

    def _whole(self, asked: Asked, answer: Answer) -> None:
        make = _chat_completion if asked.vendor == "openai" else _message
        data = json.dumps(make(asked, answer)).encode()
        self.server.owner.bill(asked.model, answer.usage)
        self._send(200, {"content-type": "application/json"}, data)

    def _refuse(self, refusal: Refusal, vendor: Vendor) -> None:
        data = refusal.body if refusal.body is not None else json.dumps(_error(vendor, refusal))
        headers = {"content-type": "application/json" if refusal.body is None else "text/html"}
        self._send(refusal.status, headers | dict(refusal.headers), data.encode())

    def _send(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        self.server.owner.began(status)
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(data)), "x-request-id": "req_1"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.server.owner.began(status)
        self.send_response(status)
        for name, value in {**headers, "transfer-encoding": "chunked", "x-request-id": "req_1"}.items():
            self.send_header(name, value)
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def _end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()


# ------------------------------------------------------------------------------------------------ the vendors' forms


def _forbidden(asked: Asked) -> Refusal | None:
    """What Anthropic's interface refuses since October 2026."""
    names = {"temperature", "top_p", "top_k"} & asked.body.keys() if asked.vendor == "anthropic" else set()
    return Refusal(400, f"{min(names)}: not permitted", "invalid_request_error") if names else None


def _error(vendor: Vendor, refusal: Refusal) -> dict[str, Any]:
    if vendor == "anthropic":
        said = {"type": refusal.type or "api_error", "message": refusal.message}
        return {"type": "error", "error": said, "request_id": "req_1"}
    said = {"message": refusal.message, "type": refusal.type, "param": refusal.param, "code": refusal.code}
    return {"error": said}


def _error_event(vendor: Vendor, error: StreamError) -> bytes:
    said: dict[str, Any] = {"type": error.type, "message": error.message}
    if vendor == "anthropic":
        return _event({"type": "error", "error": said}, "error")
    return _event({"error": said | {"code": error.code}})


def _event(data: Mapping[str, Any], name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(data).encode() + b"\n\n"


def _cut(text: str, pieces: int) -> list[str]:
    size = max(1, -(-len(text) // pieces))
    return [text[start : start + size] for start in range(0, len(text), size)]


_FINISH = {"complete": "stop", "length": "length", "refused": "stop"}
_STOP_REASON = {"complete": "end_turn", "length": "max_tokens", "refused": "refusal"}


def _chat_usage(usage: Tokens) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.written},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def _chat_events(asked: Asked, answer: Answer) -> tuple[list[bytes], list[bytes]]:
    wanted = bool((asked.body.get("stream_options") or {}).get("include_usage"))
    head: dict[str, Any] = {
        "id": f"chatcmpl-{asked.number}",
        "object": "chat.completion.chunk",
        "created": 1_790_000_000,
        "model": asked.model,
        "system_fingerprint": "fp_1",
        **({"usage": None} if wanted else {}),
    }
    word = "refusal" if answer.stop == "refused" else "content"

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        return _event(head | {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]})

    middle = [chunk({"role": "assistant", word: ""})]
    middle += [chunk({word: piece}) for piece in _cut(answer.text, answer.pieces)]
    last = [chunk({}, _FINISH[answer.stop])]
    if wanted and answer.usage is not None:
        last.append(_event(head | {"choices": [], "usage": _chat_usage(answer.usage)}))
    return middle, [*last, b"data: [DONE]\n\n"]


def _chat_completion(asked: Asked, answer: Answer) -> dict[str, Any]:
    refused = answer.stop == "refused"
    message = {
        "role": "assistant",
        "content": None if refused else answer.text,
        "refusal": answer.text if refused else None,
    }
    return {
        "id": f"chatcmpl-{asked.number}",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": asked.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": _FINISH[answer.stop]}],
        **({"usage": _chat_usage(answer.usage)} if answer.usage is not None else {}),
    }


def _message_usage(usage: Tokens) -> dict[str, Any]:
    return {
        "input_tokens": usage.input - usage.cached - usage.written,
        "cache_creation_input_tokens": usage.written,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }


def _message_head(asked: Asked, answer: Answer, output_tokens: int) -> dict[str, Any]:
    usage = {} if answer.usage is None else _message_usage(answer.usage) | {"output_tokens": output_tokens}
    return {
        "id": f"msg_{asked.number}",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        **({"usage": usage} if usage else {}),
    }


def _message_events(asked: Asked, answer: Answer) -> tuple[list[bytes], list[bytes]]:
    def event(name: str, **fields: Any) -> bytes:
        return _event({"type": name, **fields}, name)

    middle = [event("message_start", message=_message_head(asked, answer, 1)), event("ping")]
    blocks = [("thinking", answer.thinking)] if answer.thinking else []
    for index, (kind, text) in enumerate([*blocks, ("text", answer.text)]):
        empty = {"thinking": "", "signature": ""} if kind == "thinking" else {"text": ""}
        middle.append(event("content_block_start", index=index, content_block={"type": kind, **empty}))
        for piece in _cut(text, answer.pieces):
            middle.append(event("content_block_delta", index=index, delta={"type": f"{kind}_delta", kind: piece}))
        middle.append(event("content_block_stop", index=index))
    usage = {} if answer.usage is None else {"usage": _message_usage(answer.usage)}
    delta = {"stop_reason": _STOP_REASON[answer.stop], "stop_sequence": None}
    return middle, [event("message_delta", delta=delta, **usage), event("message_stop")]


def _message(asked: Asked, answer: Answer) -> dict[str, Any]:
    blocks = [{"type": "thinking", "thinking": answer.thinking, "signature": "s"}] if answer.thinking else []
    blocks.append({"type": "text", "text": answer.text})
    output_tokens = 0 if answer.usage is None else answer.usage.output
    stop = {"stop_reason": _STOP_REASON[answer.stop]}
    return _message_head(asked, answer, output_tokens) | stop | {"content": blocks}
