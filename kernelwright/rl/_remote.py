"""A remote reward server as a scorer.

A trainer trusts this module, and this module trusts no server. A reply must be JSON of bounded size, parse into closed
records and match the request; otherwise it is an error. Nothing in a reply is ever run, unpickled or followed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

from pydantic import ValidationError

from kernelwright.errors import KernelwrightError, UsageError
from kernelwright.records import Candidate, Status
from kernelwright.rl._scoring import Scored, ScoreRequest
from kernelwright.rl._wire import (
    CLIENT_HEADER,
    MOST_BODY_BYTES,
    MOST_REQUESTS,
    TOKEN_PATTERN,
    Pending,
    Refusal,
    Results,
    ScoreJob,
)

if TYPE_CHECKING:
    import httpx2

WAIT_S: Final = 600.0  # how long a server may be away
PATIENCE_S: Final = 6 * 3600.0  # how long a job may take
_POLL_S: Final = 20.0  # how long the server may hold a reply back until it has the scores
_MOST_REPLY_BYTES: Final = 64 * 2**10
_MOST_REPLY_BYTES_A_SCORE: Final = 160 * 2**10
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_AWAY: Final = frozenset({429, 502, 503, 504})
_UNFIT: Final = re.compile(r"[^\x20-\x7e]")


class RewardServerError(KernelwrightError):
    """A reward server was away for too long, refused a request, or sent an invalid reply."""

    exit_code: ClassVar[int] = 3


class _Reply(NamedTuple):
    """A raw reply. Its body has yet to be parsed as JSON."""

    status: int
    body: bytes


class _Away(Exception):
    """The server cannot be reached, or has no time now."""

    def __init__(self, why: str, retry_after_s: float = 0.0) -> None:
        super().__init__(why)
        self.why = why
        self.retry_after_s = retry_after_s


class RemoteScorer:
    """Scores kernels at ``kernelwright rl serve``. Can be pickled; belongs to one thread at a time.

    Args:
        url: address of the server, such as ``http://127.0.0.1:8775``.
        token: needed for a server that listens for other machines.
        wait_s: how long the server may be away, or its queue full, before that is an error.
        patience_s: how long one job may take while the server answers.
        client: name of this trainer in the server's queue; by default its address.
        transport: HTTP transport, for tests.
        clock, sleep: monotonic seconds, and a function that waits.

    Raises:
        UsageError: the address or the token is malformed.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        wait_s: float = WAIT_S,
        patience_s: float = PATIENCE_S,
        client: str = "",
        transport: httpx2.BaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise UsageError(f"{url!r} is not the address of a reward server", hint="write http://HOST:PORT")
        if token is not None and not re.fullmatch(TOKEN_PATTERN, token):
            raise UsageError("malformed token", hint="a token has 16 printable characters or more, without blanks")
        self.url = url.rstrip("/")
        self._token = token
        self._wait_s = wait_s
        self._patience_s = patience_s
        self._client_name = client
        self._transport = transport
        self._clock = clock
        self._sleep = sleep
        self._http: httpx2.Client | None = None

    def __repr__(self) -> str:
        return f"RemoteScorer({self.url!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_http": None, "_transport": None}

    def __enter__(self) -> RemoteScorer:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connections."""
        if self._http is not None:
            self._http.close()
            self._http = None

    def score(self, requests: Sequence[ScoreRequest]) -> list[Scored]:
        """One score for each request, in their order.

        Raises:
            UsageError: the server does not know a problem, or does not accept the request.
            RewardServerError: the server was away for longer than ``wait_s``, took longer than ``patience_s``, wants a
                token, or sent an invalid reply.
        """
        found: list[Scored] = []
        for part in _parts(requests):
            found += self._job(part)
        return found

    def _job(self, requests: Sequence[ScoreRequest]) -> tuple[Scored, ...]:
        """The scores of one job. A job that is sent again keeps its name, so that nothing is judged twice."""
        name = uuid4().hex
        body = ScoreJob(job=name, requests=tuple(requests), wait_s=_POLL_S).model_dump_json().encode()
        most = _MOST_REPLY_BYTES + _MOST_REPLY_BYTES_A_SCORE * len(requests)
        began = last_seen = self._clock()
        pause_s = _FIRST_PAUSE_S
        known = False  # whether the server has the job
        while True:
            try:
                reply = self._sent(f"/v1/jobs/{name}?wait_s={_POLL_S:g}" if known else "/v1/score", most, body, known)
            except _Away as away:
                if self._clock() - last_seen >= self._wait_s:
                    raise self._away(away.why) from None
                self._sleep(max(pause_s, min(away.retry_after_s, _LONGEST_PAUSE_S)))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                known = False
                continue
            last_seen, pause_s = self._clock(), _FIRST_PAUSE_S
            if reply.status == 200:
                return self._results(reply.body, name, requests)
            if reply.status == 202:
                self._pending(reply.body, name)
                if last_seen - began >= self._patience_s:
                    raise RewardServerError(
                        f"the job was not done within {self._patience_s:g} seconds", hint="look at the server's log"
                    )
                known = True
            elif reply.status == 404 and known:
                known = False  # the server was restarted, or forgot the job
            else:
                raise self._refused(reply)

    def _sent(self, path: str, most: int, body: bytes, known: bool) -> _Reply:
        """The reply to one request. Raise _Away if there is none, and RewardServerError if it is invalid."""
        import httpx2

        http = self._opened()
        method, content = ("GET", None) if known else ("POST", body)
        try:
            with http.stream(method, self.url + path, content=content) as reply:
                if reply.status_code in _AWAY:
                    raise _Away(f"it answers {reply.status_code}", _seconds(reply.headers.get("retry-after", "")))
                return _Reply(reply.status_code, b"".join(_bounded(reply, most)))
        except httpx2.TransportError as error:
            raise _Away(type(error).__name__) from None
        except (httpx2.HTTPError, httpx2.StreamError):
            raise _poisoned("it cannot be read") from None

    def _opened(self) -> httpx2.Client:
        import httpx2

        if self._http is None:
            headers = {"content-type": "application/json", "accept": "application/json", "accept-encoding": "identity"}
            if self._token is not None:
                headers["authorization"] = f"Bearer {self._token}"
            if self._client_name:
                headers[CLIENT_HEADER] = self._client_name
            self._http = httpx2.Client(
                headers=headers,
                timeout=httpx2.Timeout(_POLL_S + 15.0, connect=10.0),
                follow_redirects=False,
                trust_env=False,
                transport=self._transport,
            )
        return self._http

    @staticmethod
    def _results(body: bytes, name: str, requests: Sequence[ScoreRequest]) -> tuple[Scored, ...]:
        try:
            found = Results.model_validate_json(body, strict=True)
        except (ValidationError, RecursionError):
            raise _poisoned("it holds no scores") from None
        if found.job != name:
            raise _poisoned("it is the reply to another job")
        if len(found.results) != len(requests):
            raise _poisoned("it has the wrong number of scores")
        for request, scored in zip(requests, found.results, strict=True):
            if wrong := _mismatch(request, scored):
                raise _poisoned(wrong)
        return found.results

    @staticmethod
    def _pending(body: bytes, name: str) -> None:
        try:
            found = Pending.model_validate_json(body, strict=True)
        except (ValidationError, RecursionError):
            raise _poisoned("it does not give the state of the job") from None
        if found.job != name:
            raise _poisoned("it is the reply to another job")

    def _refused(self, reply: _Reply) -> KernelwrightError:
        if reply.status == 401:
            return RewardServerError(f"the reward server at {self.url} wants a token", hint="pass token=...")
        if 300 <= reply.status < 400:
            return _poisoned("it is a redirection, and none is followed")
        try:
            said = Refusal.model_validate_json(reply.body, strict=True)
        except (ValidationError, RecursionError):
            return _poisoned(f"it is {reply.status} without a reason")
        detail, hint = _plain(said.detail), _plain(said.hint)
        if reply.status == 422:
            return UsageError(f"the reward server refuses this: {detail}", hint=hint)
        return RewardServerError(f"the reward server answers {reply.status}: {detail}", hint=hint)

    def _away(self, why: str) -> RewardServerError:
        return RewardServerError(
            f"the reward server at {self.url} was away, or had no time, for {self._wait_s:g} seconds ({why})",
            hint="start it with 'kernelwright rl serve', or give its address",
        )


def _parts(requests: Sequence[ScoreRequest]) -> Iterator[list[ScoreRequest]]:
    """Split the requests into jobs of a size that a server accepts."""
    part: list[ScoreRequest] = []
    size = 0
    for request in requests:
        own = len(request.model_dump_json().encode()) + 1
        if part and (len(part) >= MOST_REQUESTS or size + own > MOST_BODY_BYTES // 2):
            yield part
            part, size = [], 0
        part.append(request)
        size += own
    if part:
        yield part


def _bounded(reply: httpx2.Response, most: int) -> Iterator[bytes]:
    """Yield the bytes of a reply, after checking that it claims to be JSON, and up to ``most`` of them."""
    kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    if reply.is_redirect or 300 <= reply.status_code < 400:
        raise _poisoned("it is a redirection, and none is followed")
    if kind != "application/json" or reply.headers.get("content-encoding", "identity") != "identity":
        raise _poisoned("it is not plain JSON")
    read = 0
    for part in reply.iter_raw():
        read += len(part)
        if read > most:
            raise _poisoned(f"it is longer than {most} bytes")
        yield part


def _mismatch(request: ScoreRequest, scored: Scored) -> str:
    """Why a score cannot answer this request; empty if it can."""
    asked = Candidate(problem_id=request.problem, source=request.source, backend=request.backend)
    if scored.candidate != asked.sha256:
        return "a score is of another kernel"
    if scored.passed != (scored.status is Status.PASSED):
        return "a score contradicts itself"
    if scored.status is None and (scored.reward is not None or not scored.fault):
        return "a score without a verdict has a reward, or no fault"
    return ""


def _poisoned(why: str) -> RewardServerError:
    return RewardServerError(
        f"the reply of the reward server cannot be used: {why}",
        hint="check that it is 'kernelwright rl serve' of this version; nothing of the reply was used",
    )


def _plain(text: str) -> str:
    """A server's text, made safe and short enough for our messages."""
    return _UNFIT.sub(" ", text)[:500]


def _seconds(text: str) -> float:
    return float(text) if re.fullmatch(r"\d{1,4}", text) else 0.0
