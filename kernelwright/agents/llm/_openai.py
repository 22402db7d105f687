"""The chat completions API of OpenAI and of compatible servers (vLLM, SGLang, Ollama, Together, DeepSeek)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import openai
from openai.types.chat import ChatCompletion

from kernelwright.agents.llm._metered import Draft, MeteredProvider, count
from kernelwright.agents.llm._translate import NoStream, Unreadable, error_body
from kernelwright.agents.llm._types import Parameters, Request, Stop, Usage
from kernelwright.errors import UsageError

_STOPS: dict[str, Stop] = {
    "stop": "complete",
    "eos": "complete",
    "stop_sequence": "complete",
    "end_turn": "complete",
    "eos_token": "complete",
    "length": "length",
    "content_filter": "refused",
}
_UNKNOWN = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unknown|unexpected|\bextra\b|not (?:permitted|allowed)|instead", re.I
)

# Optional features, and patterns for their names in error messages.
_FEATURES = {
    "two limits": "max_completion_tokens|max_tokens",
    "max_completion_tokens": "max_completion_tokens",
    "stream_options": "stream_options",
}


class OpenAIProvider(MeteredProvider):
    """``openai:MODEL`` at any base URL.

    A server that rejects ``json_schema`` is asked for ``json_object``, and then for no format at all. Usage in streams
    is left out in the same way. Servers other than OpenAI's get the limit of the reply under both of its names, since
    many know only the older name and ignore unknown ones; servers that reject both names get one. The provider
    remembers the features that a server rejects.
    """

    name = "openai"
    key_name = "OPENAI_API_KEY"
    reserved = frozenset(
        {"model", "messages", "stream", "stream_options", "response_format", "max_completion_tokens", "max_tokens", "n"}
    )
    sdk = openai
    sdk_error = openai.OpenAIError

    def _make_client(self, **arguments: Any) -> openai.OpenAI:
        host = urlsplit(arguments["base_url"]).hostname or ""
        self._unknown = frozenset({"two limits"} if f".{host}".endswith(".openai.com") else ())
        return openai.OpenAI(**arguments)

    def _refuse(self, parameters: Parameters) -> None:
        super()._refuse(parameters)
        if parameters.get("service_tier", "default") not in ("auto", "default"):
            raise UsageError("other service tiers have other prices", hint="leave out service_tier", key="service_tier")

    def _open(self, request: Request) -> Any:
        """The stream of a reply. If the server rejects an unknown feature, which is free, ask again without it."""
        without = self._unknown
        while True:
            try:
                stream = self._client.chat.completions.create(
                    **self._body(request, without), extra_body=dict(request.parameters)
                )
            except openai.APIStatusError as error:
                refused = _refused(error, without)
                if refused is None:
                    raise
                without |= {refused}
            else:
                # Success without the features shows that the server rejected them, and not a value.
                self._unknown |= without
                return stream

    def _body(self, request: Request, without: frozenset[str]) -> dict[str, Any]:
        system = [{"role": "system", "content": request.system}] if request.system else []
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [*system, *({"role": turn.role, "content": turn.text} for turn in request.messages)],
            "stream": True,
        }
        if "max_completion_tokens" not in without:
            body["max_completion_tokens"] = request.max_output_tokens
        if "two limits" not in without or "max_completion_tokens" in without:
            body["max_tokens"] = request.max_output_tokens
        if "stream_options" not in without:
            body["stream_options"] = {"include_usage": True}
        if "json_schema" not in without:
            schema = {"name": request.schema_name, "schema": dict(request.schema), "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif "json_object" not in without:
            body["response_format"] = {"type": "json_object"}
        return body

    def _read(self, event: Any, draft: Draft) -> str:
        draft.model = event.model or draft.model
        if event.usage is not None:
            draft.usage = _usage(event.usage)
        if not event.choices:
            return ""
        choice = event.choices[0]
        if choice.finish_reason:
            draft.stop = _stop(choice.finish_reason)
        return _text(choice.delta, draft)

    def _whole(self, body: Mapping[str, Any], draft: Draft) -> str:
        completion = ChatCompletion.construct(**body)
        draft.begun = completion.usage is not None  # the server counts tokens, so it may bill them
        if not completion.choices:
            raise NoStream("the answer has no choices", body)
        draft.begun, draft.model = True, str(body.get("model") or "")
        draft.usage = None if completion.usage is None else _usage(completion.usage)
        choice: Any = completion.choices[0]  # any field may be missing
        draft.stop = _stop(choice.finish_reason or "stop")
        return _text(choice.message, draft)


def _stop(reason: str) -> Stop:
    if reason not in _STOPS:
        raise Unreadable(f"the model stopped for {reason!r}")
    return _STOPS[reason]


def _text(part: Any, draft: Draft) -> str:
    """The text of a delta or of a message; empty for None. Some servers send it in parts, reasoning among them."""
    if part is None:
        return ""
    draft.refused |= bool(part.refusal)
    text = part.content or part.refusal or ""
    if isinstance(text, list):
        text = "".join(piece.get("text") for piece in text if piece.get("type") == "text")
    if not isinstance(text, str):
        raise TypeError("text is wanted")
    return text


def _refused(error: openai.APIStatusError, without: frozenset[str]) -> str | None:
    """The feature that a server rejected as unknown; None if it rejected the request for another reason."""
    if error.status_code not in (400, 422):
        return None
    said = error_body(error)
    text = f"{said.param} {said.message}"
    if "json_object" not in without and re.search("response_format|json_schema|json_object", text):
        return "json_object" if "json_schema" in without else "json_schema"
    if not _UNKNOWN.search(f"{text} {' '.join(said.names)}"):
        return None
    return next((name for name, words in _FEATURES.items() if name not in without and re.search(words, text)), None)


def _usage(said: Any) -> Usage | None:
    if said.prompt_tokens is None or said.completion_tokens is None:
        return None
    prompt, completion = said.prompt_tokens_details, said.completion_tokens_details
    cached = getattr(prompt, "cached_tokens", None)
    if cached is None:
        cached = getattr(said, "prompt_cache_hit_tokens", None)  # DeepSeek's name for it
    return Usage(
        input_tokens=count(said.prompt_tokens),
        output_tokens=count(said.completion_tokens),
        cached_tokens=count(cached),
        cache_write_tokens=count(getattr(prompt, "cache_write_tokens", None)),
        reasoning_tokens=count(getattr(completion, "reasoning_tokens", None)),
    )
