"""What goes to a language model and what comes back, the same for every provider."""

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
    """Where in a run a reply belongs. ``attempt`` counts how often the model was asked again about its own reply."""

    problem: str
    step: int
    role: str
    sample: int = 0
    attempt: int = 0


@dataclass(frozen=True)
class Request:
    """One question. ``schema`` is the JSON schema that the reply must have.

    Two requests with the same ``key`` are the same question, wherever they are asked. ``draw`` tells apart those that
    ask the same for another answer: who samples anew wants no reply from the log.
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
        """All that is said, as one text: what is stored, hashed and compared."""
        return "\n\n".join([f"[system]\n{self.system}", *(f"[{turn.role}]\n{turn.text}" for turn in self.messages)])

    @property
    def prompt_sha256(self) -> str:
        """Hash of :attr:`prompt`."""
        return sha256_text(self.prompt)

    def key(self, provider: str, model: str) -> str:
        """What a reply is kept under: provider, model, parameters, prompt, schema, and which sample it is."""
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
    """Tokens of one reply. ``input_tokens`` counts all of the prompt, ``output_tokens`` all that was generated.

    ``cached_tokens`` and ``cache_write_tokens`` are parts of the input, ``reasoning_tokens`` of the output.
    """

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0


class Reply(NamedTuple):
    """What a model answered. ``usage`` is None where the provider did not say.

    ``recorded_prompt`` is the hash of the prompt that a recording has the reply to; empty where this is none.
    """

    text: str
    stop: Stop
    usage: Usage | None
    seconds: float
    model: str = ""  # as the provider names what answered
    recorded_prompt: str = ""


class Provider(Protocol):
    """Whoever answers. Safe to use from several threads at once.

    Attributes:
        name: the word before the colon: "openai", "anthropic", "mailbox", "replay".
        model: what stands after it.
        metered: whether somebody is billed for what it answers, so that a budget must reserve for each request.
    """

    name: str
    model: str
    metered: bool

    def send(self, request: Request, *, on_text: Callable[[int], None] = lambda characters: None) -> Reply:
        """The reply to one request: asked once, never retried.

        Args:
            on_text: told now and then how many characters of the reply have arrived.

        Raises:
            ModelFault: there is none.
            AwaitingReply: somebody is still to write it.
        """
        ...

    def close(self) -> None:
        """Give back connections; requests in flight fail."""
        ...
