"""Runs, and the replies and advice of models in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from kernelwright.records.base import Backend, Record

InsightType = Literal["bottleneck", "pitfall", "opportunity"]
Severity = Literal["low", "medium", "high"]
SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low")  # the worst first


class Insight(Record):
    """A finding of a Judge that applies beyond one kernel. ``text`` is quoted as data wherever it is shown."""

    type: InsightType
    tag: str  # a short slug: what it is about
    severity: Severity
    text: str


class Advice(Record):
    """One piece of advice from a Judge: exactly one bottleneck, one method and one plan; and the Judge's insights."""

    mode: Literal["repair", "optimise", "stop"]
    bottleneck: str
    method: str
    plan: str
    action: dict[str, Any] = {}  # for the offline Coder, for example {"knob": "UNROLL", "value": 4}
    expected: str = ""
    insights: tuple[Insight, ...] = ()


class LLMCall(Record):
    """One reply of a language model. Unknown cost is None, never 0.

    ``key`` identifies the question, so that a repeated one finds this reply. ``input_tokens`` counts the whole prompt,
    cached or not; ``output_tokens`` counts everything generated.
    """

    role: str
    provider: str
    model: str
    prompt_sha256: str
    reply_sha256: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_usd: float | None = None
    seconds: float = 0.0
    stop: Literal["complete", "length", "refused"] = "complete"  # why it ended
    key: str | None = None
    problem: str | None = None
    sample: int = 0
    attempt: int = 0


def _without_folders(recipe: str) -> str:
    return recipe.rpartition("/")[2] if recipe.endswith(".toml") else recipe


class RunConfig(Record):
    """The configuration of a run. It is stored with the run and is sufficient to resume it.

    If the recipe was read from a file, ``recipe`` is only the file's name, because boards show it and should not show
    the user's folders. ``settings`` has the path.
    """

    problems: tuple[str, ...]
    coder: str = "offline"
    models: tuple[str, ...] = ()  # models that write kernels in addition to the coder
    judge: str = "offline"
    verifier: str = "none"
    backend: Backend = "cpp"
    rounds: int = Field(default=6, ge=1)
    max_minutes: float | None = None
    max_cost_usd: float | None = None
    max_tokens: int | None = None
    max_device_seconds: float | None = None
    sandbox: str = "auto"
    threads: int = Field(default=1, ge=1)
    baselines: tuple[str, ...] = ("eager", "compile")
    recipe: Annotated[str, AfterValidator(_without_folders)] = "default"
    search: Mapping[str, Any] | None = None  # the recipe's plan of an evolutionary search, or None
    every_variant: bool = False  # the problems are all variants of the given ones; those too small to time are skipped
    tune: Mapping[str, Any] | None = None  # the plan of a search over one kernel's knobs, or None
    bench: Mapping[str, Any] | None = None  # the plan of independent samples of each problem, or None
    suite_dirs: tuple[str, ...] = ()
    settings: Mapping[str, Any] = {}
