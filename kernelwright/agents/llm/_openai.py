"""Chat completions: OpenAI, and every server that speaks as it does (vLLM, SGLang, Ollama, Together, DeepSeek)."""

from __future__ import annotations

import re
from typing import Any

import openai

from kernelwright.agents.llm._metered import Draft, MeteredProvider, count
from kernelwright.agents.llm._translate import Unreadable, error_body
from kernelwright.agents.llm._types import Parameters, Request, Stop, Usage
from kernelwright.errors import UsageError

_STOPS: dict[str, Stop] = {
    "stop": "complete",
    "eos": "complete",
    "stop_sequence": "complete",
    "length": "length",
    "content_filter": "refused",
}
_UNKNOWN = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unknown|unexpected|\bextra\b|not (?:permitted|allowed)|instead", re.I
)


class OpenAIProvider(MeteredProvider):
    """``openai:MODEL`` at any base URL.

    A server that refuses ``json_schema`` is asked for ``json_object``, and then for no format at all; usage in streams
    and ``max_completion_tokens`` are done without likewise. What a server was found not to know is remembered.
    """

    name = "openai"
    key_name = "OPENAI_API_KEY"
    reserved = frozenset(
        {"model", "messages", "stream", "stream_options", "response_format", "max_completion_tokens", "max_tokens", "n"}
    )
    sdk = openai
    sdk_error = openai.OpenAIError

    _unknown: frozenset[str] = frozenset()

    def _make_client(self, **arguments: Any) -> openai.OpenAI:
        return openai.OpenAI(**arguments)

    def _refuse(self, parameters: Parameters) -> None:
        super()._refuse(parameters)
        if parameters.get("service_tier", "default") not in ("auto", "default"):
            raise UsageError("other service tiers have other prices", hint="leave out service_tier", key="service_tier")

    def _open(self, request: Request) -> Any:
        """The stream of a reply. Refusals for what a server doesn't know cost nothing, and are answered at once."""
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
                # Only now is it known that the server was refusing the feature, and not a value.
                self._unknown |= without
                return stream

    def _body(self, request: Request, without: frozenset[str]) -> dict[str, Any]:
        system = [{"role": "system", "content": request.system}] if request.system else []
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [*system, *({"role": turn.role, "content": turn.text} for turn in request.messages)],
            "stream": True,
        }
        limit = "max_tokens" if "max_completion_tokens" in without else "max_completion_tokens"
        body[limit] = request.max_output_tokens
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
        if choice.finish_reason is not None:
            if choice.finish_reason not in _STOPS:
                raise Unreadable(f"the model stopped for {choice.finish_reason!r}")
            draft.stop = _STOPS[choice.finish_reason]
        if choice.delta is None:
            return ""
        draft.refused |= bool(choice.delta.refusal)
        text = choice.delta.content or choice.delta.refusal or ""
        if not isinstance(text, str):
            raise TypeError("text is wanted")
        return text


def _refused(error: openai.APIStatusError, without: frozenset[str]) -> str | None:
    """The feature that a server refused to know, None where that is not why it refused."""
    if error.status_code not in (400, 422):
        return None
    said = error_body(error)
    text = f"{said.param} {said.message}"
    if "json_object" not in without and re.search("response_format|json_schema|json_object", text):
        return "json_object" if "json_schema" in without else "json_schema"
    if _UNKNOWN.search(f"{text} {' '.join(said.names)}"):
        for feature in ("stream_options", "max_completion_tokens"):
            if feature in text and feature not in without:
                return feature
    return None


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
