"""What goes wrong between us and a model, by name."""

from __future__ import annotations

from typing import Literal

from kernelwright.errors import KernelwrightError

FaultKind = Literal[
    "rate-limit", "overloaded", "server-error", "timeout", "connection", "cut-stream", "rejected", "credentials"
]
# Refused before any work was done: nobody is billed for these. All else may have been worked on.
UNBILLED: frozenset[FaultKind] = frozenset({"rate-limit", "overloaded", "rejected", "credentials"})
RETRIED: frozenset[FaultKind] = frozenset(
    {"rate-limit", "overloaded", "server-error", "timeout", "connection", "cut-stream"}
)


class ModelFault(KernelwrightError):
    """A request that got no reply.

    ``data`` holds ``kind``; ``spec`` (``provider:model``); ``retry_after_s`` and ``status`` where the provider said so;
    ``begun``, which is true where a reply had begun before the fault; and ``unbilled``, true where no model worked.
    """

    exit_code = 3

    @property
    def kind(self) -> FaultKind:
        """Which fault."""
        kind: FaultKind = self.data["kind"]
        return kind

    @property
    def retry_after_s(self) -> float | None:
        """How long the provider asked to wait."""
        return self.data.get("retry_after_s")

    @property
    def may_be_billed(self) -> bool:
        """Whether somebody may have to pay for it: a model that is overloaded halfway has worked nevertheless."""
        if self.data.get("unbilled"):
            return False
        return self.kind not in UNBILLED or bool(self.data.get("begun"))


class AwaitingReply(KernelwrightError):
    """A reply that somebody is still to write; ``data["path"]`` is where it will be read from."""


class Stopped(KernelwrightError):
    """The run is to stop, and what was to be asked is not asked; the message is the reason."""

    exit_code = 130
