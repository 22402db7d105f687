"""Translates the errors of a vendor's SDK to :class:`ModelFault`, without keys in the message."""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import httpx2

from kernelwright.agents.llm._faults import FaultKind, ModelFault

MESSAGE_CHARACTERS = 300

_SECRETS = re.compile(r"(?i)(?<=bearer )\S+|\bsk-[\w-]{8,}")
_OF_STATUS: dict[int, FaultKind] = {
    401: "credentials",
    402: "credentials",
    403: "credentials",
    408: "timeout",
    429: "rate-limit",
    503: "overloaded",
    529: "overloaded",
}
_OF_NAME: dict[str, FaultKind] = {
    "overloaded_error": "overloaded",
    "rate_limit_error": "rate-limit",
    "rate_limit_exceeded": "rate-limit",
    "authentication_error": "credentials",
    "billing_error": "credentials",
    "permission_error": "credentials",
    "invalid_request_error": "rejected",
    "not_found_error": "rejected",
}
# Reported like a rate limit, but waiting does not help, since the account has no money left.
_SPENT = frozenset({"insufficient_quota", "contract_spend_limit_reached", "enforced_spend_limit_reached"})


class Service(NamedTuple):
    """The server that was asked. ``key_name`` is the variable of its key; ``secrets`` must never be shown."""

    spec: str
    base_url: str
    key_name: str
    sdk: ModuleType
    secrets: tuple[str, ...]
    timeout_s: float


class Unreadable(Exception):
    """A reply without the form that its vendor's interface promises."""


class NoStream(Exception):
    """An answer that is neither a stream of events nor a reply: a web page, an error, a reply without a choice.

    Attributes:
        body: the answer's JSON, or None if it is not JSON.
    """

    def __init__(self, message: str, body: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.body = body


class ErrorBody(NamedTuple):
    """A vendor's description of an error: ``names`` are its types and codes, ``param`` the parameter at fault."""

    message: str
    names: frozenset[str]
    param: str


def error_body(error: Exception) -> ErrorBody:
    """Read the body of an SDK's error, in any of the usual forms."""
    body = getattr(error, "body", None)
    if isinstance(body, Mapping) and isinstance(body.get("error"), Mapping | str):
        body = body["error"]
    if not isinstance(body, Mapping):
        return ErrorBody("" if body is None else str(body), frozenset(), "")
    details = body.get("details")
    nested = details.get("error_code") if isinstance(details, Mapping) else None
    names = frozenset(str(name) for name in (body.get("type"), body.get("code"), nested) if name is not None)
    message = body.get("message") or body.get("detail") or ""
    return ErrorBody(str(message), names, str(body.get("param") or ""))


def model_fault(error: Exception, service: Service, *, begun: bool, closed: bool) -> ModelFault:
    """The fault that corresponds to an error of the SDK.

    Args:
        begun: whether the reply had begun to arrive.
        closed: whether we closed the connection ourselves.
    """
    status = _status(error)
    said = error_body(error)
    kind: FaultKind
    if closed:
        kind, what = "connection", "the connection was closed on this side"
    elif isinstance(error, service.sdk.APITimeoutError | httpx2.TimeoutException):
        kind, what = "timeout", f"no reply within {service.timeout_s:g} s"
    elif isinstance(error, NoStream):
        kind, what = _kind_of_answer(said.names), "no reply"
    elif status is not None:
        kind, what = _kind_of_status(status, said.names), f"error {status}"
    elif said.message or said.names:
        kind, what = _kind_in_stream(said.names), "error while replying"
    elif begun or isinstance(error, Unreadable | ValueError | service.sdk.APIResponseValidationError):
        kind, what = "cut-stream", "the reply broke off or cannot be read"
    else:
        kind, what = "connection", f"no connection to {service.base_url}"
    detail = said.message or _cause(error)
    message = f"{service.spec}: {what}{': ' + detail if detail else ''}"
    data: dict[str, Any] = {"status": status, "retry_after_s": _retry_after_s(error)}
    if isinstance(error, NoStream) and not begun:
        data["unbilled"] = True
    return ModelFault(
        _without_secrets(message, service.secrets),
        hint=_hint(kind, service),
        kind=kind,
        spec=service.spec,
        begun=begun,
        **{name: value for name, value in data.items() if value is not None},
    )


def _status(error: Exception) -> int | None:
    """The HTTP status of a refusal; None for an error inside a stream, whose status is a success."""
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) and status >= 300 else None


def _kind_of_status(status: int, names: frozenset[str]) -> FaultKind:
    if "overloaded_error" in names:
        return "overloaded"
    if names & _SPENT:
        return "credentials"
    return _OF_STATUS.get(status, "server-error" if status >= 500 else "rejected")


def _kind_in_stream(names: frozenset[str]) -> FaultKind:
    for name in sorted(names):
        if name in _SPENT:
            return "credentials"
        if name in _OF_NAME:
            return _OF_NAME[name]
        if re.fullmatch(r"[45]\d\d", name):  # servers that put the status into the code of the error
            return _kind_of_status(int(name), names)
    return "server-error"


def _kind_of_answer(names: frozenset[str]) -> FaultKind:
    """The kind of an answer that is not a stream: the kind that it names, else "rejected", which is not retried."""
    kind = _kind_in_stream(names)
    known = any(name in _SPENT or name in _OF_NAME or re.fullmatch(r"[45]\d\d", name) for name in names)
    return kind if known else "rejected"


def _retry_after_s(error: Exception) -> float | None:
    """Seconds to wait, from ``retry-after-ms`` or ``retry-after`` (seconds or an HTTP date)."""
    response = getattr(error, "response", None)
    if response is None:
        return None
    wait_s = _number(response.headers.get("retry-after-ms"), 1e-3)
    text = response.headers.get("retry-after", "")
    if wait_s is None:
        wait_s = _number(text, 1.0)
    if wait_s is None and (date := email.utils.parsedate_tz(text)) is not None:
        wait_s = email.utils.mktime_tz(date) - time.time()
    return None if wait_s is None else max(0.0, wait_s)


def _number(text: str | None, unit: float) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number * unit if math.isfinite(number) else None


def _cause(error: Exception) -> str:
    """The message of the innermost error, since the SDKs' own messages say less."""
    innermost: BaseException = error
    while innermost.__cause__ is not None:
        innermost = innermost.__cause__
    if isinstance(innermost, httpx2.HTTPError | OSError | Unreadable | NoStream):
        return str(innermost)
    return ""


def _without_secrets(text: str, secrets: tuple[str, ...]) -> str:
    """The text as one line without keys, cut if it is long. Keys are removed first, so no cut leaves half a key."""
    for secret in secrets:
        text = text.replace(secret, "***")
    text = " ".join(_SECRETS.sub("***", text).split())
    return text if len(text) <= MESSAGE_CHARACTERS else f"{text[:MESSAGE_CHARACTERS]}..."


def _hint(kind: FaultKind, service: Service) -> str:
    hints: dict[Any, str] = {
        "credentials": f"check {service.key_name} and the account that it belongs to",
        "timeout": "--set llm_timeout_s=SECONDS allows for more",
        "connection": "check the base URL, and that its server runs",
        "rejected": "check the model's name and the parameters",
    }
    return hints.get(kind, "")
