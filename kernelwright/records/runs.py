"""Runs, and what models said in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from kernelwright.records.base import Backend, Record

InsightType = Literal["bottleneck", "pitfall", "opportunity"]
Severity = Literal["low", "medium", "high"]
SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low")  # the worst first


class Insight(Record):
    """Something that a Judge found out and that holds beyond one kernel; ``text`` is quoted as data where shown."""

    type: InsightType
    tag: str  # a short slug: what it is about
    severity: Severity
    text: str


class Advice(Record):
    """One structured piece of advice from a Judge: exactly one bottleneck, one method, one plan; and what it found."""

    mode: Literal["repair", "optimise", "stop"]
    bottleneck: str
    method: str
    plan: str
    action: dict[str, Any] = {}  # for the offline Coder, for example {"knob": "UNROLL", "value": 4}
    expected: str = ""
    insights: tuple[Insight, ...] = ()


class LLMCall(Record):
    """One reply of a language model. Unknown cost is None, never 0.

    ``key`` is what the reply is found under when the same question comes again. ``input_tokens`` counts all of the
    prompt, cached or not, and ``output_tokens`` all that was generated.
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
    """What a run was asked to do; stored with it, and all that a resume needs.

    Of a recipe that was read from a file, ``recipe`` is the file's name: boards show it, and its folders are nobody's
    business there. ``settings`` has the path.
    """

    problems: tuple[str, ...]
    coder: str = "offline"
    models: tuple[str, ...] = ()  # that write kernels beside the coder
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
    search: Mapping[str, Any] | None = None  # the recipe's plan of an evolutionary search; None where it has none
    every_variant: bool = False  # its problems are all their variants: those too small to time are left alone
    tune: Mapping[str, Any] | None = None  # the plan of a search of one kernel's knobs; None where the run is none
    bench: Mapping[str, Any] | None = None  # the plan of independent samples of each problem; None where it has none
    suite_dirs: tuple[str, ...] = ()
    settings: Mapping[str, Any] = {}
