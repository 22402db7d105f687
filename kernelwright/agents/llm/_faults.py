"""The faults of requests to a model."""

from __future__ import annotations

from typing import Literal

from kernelwright.errors import KernelwrightError, NotYet

FaultKind = Literal[
    "rate-limit", "overloaded", "server-error", "timeout", "connection", "cut-stream", "rejected", "credentials"
]
# Rejected before any work, and so not billed. A model may have worked on all other requests.
UNBILLED: frozenset[FaultKind] = frozenset({"rate-limit", "overloaded", "rejected", "credentials"})
RETRIED: frozenset[FaultKind] = frozenset(
    {"rate-limit", "overloaded", "server-error", "timeout", "connection", "cut-stream"}
)


class ModelFault(KernelwrightError):
    """A request that got no reply.

    ``data`` holds ``kind``; ``spec`` (``provider:model``); ``retry_after_s`` and ``status`` if the provider gave them;
    ``begun``, true if the reply had begun before the fault; and ``unbilled``, true if no model worked on the request.
    """

    exit_code = 3

    @property
    def kind(self) -> FaultKind:
        """The kind of the fault."""
        kind: FaultKind = self.data["kind"]
        return kind

    @property
    def retry_after_s(self) -> float | None:
        """The seconds that the provider asked to wait, or None."""
        return self.data.get("retry_after_s")

    @property
    def may_be_billed(self) -> bool:
        """Whether the request may be billed. A model that is overloaded halfway through a reply has still worked."""
        if self.data.get("unbilled"):
            return False
        return self.kind not in UNBILLED or bool(self.data.get("begun"))


class AwaitingReply(NotYet):
    """A reply is still to be written."""


class Stopped(KernelwrightError):
    """The run must stop, and the request was not sent; the message is the reason."""

    exit_code = 130
