"""Requests to language models and their replies, the same for every provider."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from kernelwright.records import sha256_text

Parameters = Mapping[str, int | float | str | bool]
Stop = Literal["complete", "length", "refused"]


class Message(NamedTuple):
    """One turn of a conversation; ``role`` is "user" or "assistant"."""

    role: str
    text: str


class Place(NamedTuple):
    """The place of a reply in a run. ``attempt`` counts how often the model was asked again after a bad reply."""

    problem: str
    step: int
    role: str
    sample: int = 0
    attempt: int = 0


@dataclass(frozen=True)
class Request:
    """One question. ``schema`` is the JSON schema that the reply must have.

    Two requests with the same ``key`` are the same question, in any run. A different ``draw`` asks the same question
    for another answer, so independent samples get no reply from the log.
    """

    system: str
    messages: tuple[Message, ...]
    schema_name: str
    schema: Mapping[str, Any]
    place: Place
    max_output_tokens: int
    parameters: Parameters = field(default_factory=dict)
    draw: int = 0

    @property
    def prompt(self) -> str:
        """The system prompt and all turns as one text, which is stored, hashed and compared."""
        return "\n\n".join([f"[system]\n{self.system}", *(f"[{turn.role}]\n{turn.text}" for turn in self.messages)])

    @property
    def prompt_sha256(self) -> str:
        """Hash of :attr:`prompt`."""
        return sha256_text(self.prompt)

    def key(self, provider: str, model: str) -> str:
        """The key of a reply in the log: a hash of provider, model, parameters, prompt, schema, sample and draw."""
        content = {
            "provider": provider,
            "model": model,
            "parameters": dict(self.parameters),
            "max_output_tokens": self.max_output_tokens,
            "prompt": self.prompt_sha256,
            "schema": self.schema,
            "sample": self.place.sample,
            **({"draw": self.draw} if self.draw else {}),
        }
        return sha256_text(json.dumps(content, sort_keys=True))


class Usage(NamedTuple):
    """Tokens of one reply. ``input_tokens`` counts the whole prompt, ``output_tokens`` all generated tokens.

    ``cached_tokens`` and ``cache_write_tokens`` are parts of the input, ``reasoning_tokens`` of the output.
    """

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0


class Reply(NamedTuple):
    """A model's reply. ``usage`` is None if the provider did not give it.

    ``recorded_prompt`` is the hash of the recorded prompt if the reply comes from a recording, else empty.
    """

    text: str
    stop: Stop
    usage: Usage | None
    seconds: float
    model: str = ""  # the provider's name for the model that answered
    recorded_prompt: str = ""


class Provider(Protocol):
    """Answers requests. Safe to use from several threads at once.

    Attributes:
        name: the word before the colon: "openai", "anthropic", "mailbox", "replay".
        model: the model's name, which follows the colon.
        metered: whether replies are billed, so that a budget must reserve for each request.
    """

    name: str
    model: str
    metered: bool

    def send(self, request: Request, *, on_text: Callable[[int], None] = lambda characters: None) -> Reply:
        """The reply to one request, which is sent once and never retried.

        Args:
            on_text: called now and then with the number of characters received so far.

        Raises:
            ModelFault: there is no reply.
            AwaitingReply: the reply is still to be written.
        """
        ...

    def close(self) -> None:
        """Close the connections. Requests in flight fail."""
        ...
