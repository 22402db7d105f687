"""Requests for the tests of providers, and providers that ask a :class:`ModelServer`."""

from __future__ import annotations

from typing import Any

import pytest
from llm_server import ModelServer

from kernelwright.agents.llm import Message, ModelFault, Place, Provider, Request, metered_provider
from kernelwright.config import Settings

KEY = "an-unusual-key-0123456789"
KEYS = {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY}
SPECS = ("openai:gpt-6-sol", "anthropic:claude-opus-5")
SCHEMA = {
    "type": "object",
    "properties": {"code": {"type": "string"}},
    "required": ["code"],
    "additionalProperties": False,
}


def request(text: str = "write it", system: str = "You write kernels.", **parameters: Any) -> Request:
    turns = (Message("user", "hello"), Message("assistant", "hi"), Message("user", text))
    return Request(system, turns, "kernel", SCHEMA, Place("p", 0, "coder"), 1000, parameters)


def settings_for(server: ModelServer, **changes: Any) -> Settings:
    return Settings(
        openai_base_url=server.openai_base_url,
        anthropic_base_url=server.anthropic_base_url,
        openai_timeout_s=30,
        anthropic_timeout_s=30,
        **changes,
    )


def provider(server: ModelServer, spec: str, timeout_s: float = 30.0) -> Provider:
    """A provider with a key; close it."""
    settings = settings_for(server).with_values(openai_timeout_s=timeout_s, anthropic_timeout_s=timeout_s)
    return metered_provider(spec, settings, KEYS)


def fault_of(asked: Provider, question: Request | None = None) -> ModelFault:
    """The fault that a request ends with."""
    with pytest.raises(ModelFault) as caught:
        asked.send(question or request())
    return caught.value
