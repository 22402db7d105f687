"""The Messages API of Anthropic and of compatible servers."""

from __future__ import annotations

from typing import Any

import anthropic

from kernelwright.agents.llm._metered import Draft, MeteredProvider, count
from kernelwright.agents.llm._translate import Unreadable
from kernelwright.agents.llm._types import Parameters, Request, Stop, Usage
from kernelwright.errors import UsageError

_STOPS: dict[str, Stop] = {
    "end_turn": "complete",
    "stop_sequence": "complete",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}
_SAMPLING = frozenset({"temperature", "top_p", "top_k"})
# About 1024 tokens, the shortest prompt that any of the models caches.
CACHED_CHARACTERS = 4096


class AnthropicProvider(MeteredProvider):
    """``anthropic:MODEL``.

    Parameters: ``effort``; ``thinking`` ("adaptive", "disabled") or ``thinking_budget`` (in tokens, and less than the
    limit of the reply). Other parameters are passed on unchanged.
    """

    name = "anthropic"
    key_name = "ANTHROPIC_API_KEY"
    # speed and inference_geo change what a token costs.
    reserved = frozenset(
        {"model", "messages", "system", "stream", "max_tokens", "output_config", "speed", "inference_geo"}
    )
    sdk = anthropic
    sdk_error = anthropic.AnthropicError

    def _make_client(self, **arguments: Any) -> anthropic.Anthropic:
        return anthropic.Anthropic(**arguments)

    def _refuse(self, parameters: Parameters) -> None:
        super()._refuse(parameters)
        for name in sorted(_SAMPLING & parameters.keys()):
            raise UsageError(
                f"anthropic models take no {name} any more",
                hint="leave it out; use effort instead, and different prompts to get different replies",
                key=name,
            )

    def _open(self, request: Request) -> Any:
        return self._client.messages.create(**self._body(request))

    def _body(self, request: Request) -> dict[str, Any]:
        parameters = dict(request.parameters)
        output: dict[str, Any] = {
            "format": {"type": "json_schema", "schema": anthropic.transform_schema(dict(request.schema))}
        }
        if (effort := parameters.pop("effort", None)) is not None:
            output["effort"] = effort
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_output_tokens,
            "messages": [{"role": turn.role, "content": turn.text} for turn in request.messages],
            "output_config": output,
            "stream": True,
        }
        if request.system:
            body["system"] = [_system_block(request.system)]
        if (budget := parameters.pop("thinking_budget", None)) is not None:
            body["thinking"] = {"type": "enabled", "budget_tokens": budget}
        elif (thinking := parameters.pop("thinking", None)) is not None:
            body["thinking"] = {"type": thinking}
        return body | ({"extra_body": parameters} if parameters else {})

    def _read(self, event: Any, draft: Draft) -> str:
        match event.type:
            case "message_start":
                draft.model = event.message.model
                draft.tokens = _tokens(event.message.usage)
            case "content_block_delta" if event.delta.type == "text_delta":
                if not isinstance(event.delta.text, str):
                    raise TypeError("text is wanted")
                return event.delta.text
            case "message_delta":
                final = _tokens(event.usage)
                draft.tokens |= final
                draft.usage = _usage(draft.tokens) if "output_tokens" in final else None
                draft.reason = event.delta.stop_reason or draft.reason
            case "message_stop":
                if draft.reason not in _STOPS:
                    raise Unreadable(f"the model stopped for {draft.reason!r}")
                draft.stop = _STOPS[draft.reason]
        return ""


def _system_block(text: str) -> dict[str, Any]:
    """The block of a system prompt, cached if long: many requests share it, and a cached read costs a tenth or less."""
    block: dict[str, Any] = {"type": "text", "text": text}
    return block | ({"cache_control": {"type": "ephemeral"}} if len(text) >= CACHED_CHARACTERS else {})


def _tokens(said: Any) -> dict[str, int]:
    """The numbers in a usage block, by our names. Numbers at the end of a reply replace those at its beginning."""
    if said is None:
        return {}
    found = {
        "input_tokens": said.input_tokens,
        "cache_write_tokens": said.cache_creation_input_tokens,
        "cached_tokens": said.cache_read_input_tokens,
        "output_tokens": said.output_tokens,
        "reasoning_tokens": getattr(said.output_tokens_details, "thinking_tokens", None),
    }
    return {name: count(number) for name, number in found.items() if number is not None}


def _usage(tokens: dict[str, int]) -> Usage | None:
    """The usage. Our input tokens include those read from or written to the cache; the vendor's do not."""
    if "input_tokens" not in tokens:
        return None
    all_input = sum(tokens.get(name, 0) for name in ("input_tokens", "cached_tokens", "cache_write_tokens"))
    return Usage(**tokens | {"input_tokens": all_input})
