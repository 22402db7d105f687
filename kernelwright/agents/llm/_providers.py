"""Makes a provider from ``openai:MODEL`` and the settings. SDKs are imported late, since that takes a second."""

from __future__ import annotations

from collections.abc import Mapping

from kernelwright.agents.llm._types import Provider
from kernelwright.config import NAMES, Endpoint, Settings, api_key
from kernelwright.errors import MissingToolError, UsageError

KEY_NAMES = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}


def metered_provider(spec: str, settings: Settings, env: Mapping[str, str] | None = None) -> Provider:
    """The provider for ``openai:MODEL`` or ``anthropic:MODEL``; nothing is sent yet.

    Args:
        env: the environment with the key (default: this process's).

    Raises:
        UsageError: the spec names no vendor or no model.
        MissingToolError: there is no key, and the server is the vendor's own.
    """
    vendor, _, model = spec.partition(":")
    if vendor not in KEY_NAMES or not model:
        raise UsageError(f"{spec!r} names no model", hint="write openai:MODEL or anthropic:MODEL", spec=spec)
    server = endpoint_of(vendor, settings)
    key = api_key(KEY_NAMES[vendor], env)
    if key is None and vendor in vendors_own(settings):
        raise MissingToolError(
            f"{spec} needs a key, and {KEY_NAMES[vendor]} is not set",
            hint=f"set {KEY_NAMES[vendor]}, or {vendor}.base_url to a server that needs none",
            key=KEY_NAMES[vendor],
        )
    if vendor == "openai":
        from kernelwright.agents.llm._openai import OpenAIProvider

        return OpenAIProvider(model, api_key=key, base_url=server.base_url, timeout_s=server.timeout_s)
    from kernelwright.agents.llm._anthropic import AnthropicProvider

    return AnthropicProvider(model, api_key=key, base_url=server.base_url, timeout_s=server.timeout_s)


def vendors_own(settings: Settings) -> frozenset[str]:
    """The vendors that are asked at their own base URL, so that their list prices apply."""
    return frozenset(
        vendor for vendor in KEY_NAMES if endpoint_of(vendor, settings).base_url == NAMES[f"{vendor}.base_url"].default
    )


def endpoint_of(vendor: str, settings: Settings) -> Endpoint:
    """The server settings of ``openai`` or ``anthropic``."""
    return {"openai": settings.openai, "anthropic": settings.anthropic}[vendor]
