"""Structured replies of models: their schemas, their validation, and one retry before a step fails."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from kernelwright.agents.llm import Message, ModelClient, ModelFault, Place, Request
from kernelwright.agents.roles import RoleFailed
from kernelwright.records.problems import PatternKind
from kernelwright.records.problems import Place as RowPlace
from kernelwright.records.runs import SEVERITIES, Insight, InsightType, Severity

T = TypeVar("T")
_FENCE = re.compile(r"\A\s*```[\w+-]*\n(.*?)\n?```\s*\Z", re.DOTALL)
_FENCES = re.compile(r"^[ \t]*```([\w+-]*)[ \t]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
_THOUGHTS = re.compile(r"\A\s*<(think|thinking)>.*?</\1>", re.DOTALL)
_LONGEST_PLAN = 300  # characters before a fenced kernel that count as its plan
_LONGEST_ERROR = 2000  # characters of an error that a model is shown
_LONGEST_REASON = 300


class ReplyModel(BaseModel):
    """Base of all replies: no extra fields, and every field required, as structured outputs need it.

    A field has a default only if recordings of earlier versions lack it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


class KernelReply(ReplyModel):
    """A whole candidate file."""

    plan: str = Field(
        description="what this kernel does differently, and why it should be faster or right; 1-3 sentences"
    )
    source: str = Field(description="the complete candidate file: Python with class ModelNew")


class Edit(ReplyModel):
    """One replacement in the parent's source."""

    find: str = Field(description="text that occurs exactly once in the source, copied to the letter")
    replace: str = Field(description="what stands there instead")


class EditReply(ReplyModel):
    """Changes to the parent's source."""

    plan: str = Field(description="what is changed, and why it should be faster; 1-3 sentences")
    edits: list[Edit] = Field(description="replacements, made one after the other")


class FoundInsight(ReplyModel):
    """Something found out that holds beyond this one kernel."""

    type: InsightType = Field(
        description="bottleneck: what limits kernels for this task. pitfall: what breaks them or makes them slow. "
        "opportunity: what nobody has used yet"
    )
    tag: str = Field(description="what it is about, as a short slug such as memory-traffic or vector-width")
    severity: Severity = Field(description="how much time hangs on it, or how many kernels would fail for it")
    text: str = Field(description="the finding, with the figure that shows it; at most 30 words")


_INSIGHTS = Field(
    default=(), description="at most three things worth knowing for later kernels of such tasks; empty for none"
)


class RepairAdvice(ReplyModel):
    """What is wrong with a kernel that failed."""

    critical_issue: str = Field(description="the one fault that made it fail, in at most 20 words")
    why: str = Field(description="how the evidence shows it, in at most 40 words")
    minimal_fix: str = Field(description="the smallest change that mends it, in at most 40 words")
    insights: tuple[FoundInsight, ...] = _INSIGHTS


class OptimiseAdvice(ReplyModel):
    """What limits a kernel that passed."""

    bottleneck: str = Field(
        description="the one thing that limits it now, with the figure that shows it; at most 30 words"
    )
    method: str = Field(description="one optimisation method, named")
    plan: str = Field(description="how to apply it to this kernel, in at most 60 words")
    expected_effect: str = Field(description="what it should bring, as a ratio, and why; at most 30 words")
    insights: tuple[FoundInsight, ...] = _INSIGHTS


class Notes(ReplyModel):
    """What was learned on a problem so far."""

    notes: str = Field(description="the notes as plain text, shorter than the limit given")


class Prediction(ReplyModel):
    """How a candidate will fare, before hardware is spent on it."""

    outcome: Literal["passes", "build-failure", "runtime-failure", "numerical-failure"] = Field(
        description="what will happen: it passes; it does not compile or import; it crashes, or runs out of memory or "
        "time; it gives wrong numbers"
    )
    confidence: float = Field(description="probability of that outcome, from 0 to 1")
    reason: str = Field(description="the line and the mistake, in at most 40 words; for a kernel that passes: empty")


class ProposedPattern(ReplyModel):
    """How the elements of one input are drawn; z is standard normal, or the part of it that the domain has."""

    input: str = Field(description="name of a tensor input of forward whose fill is normal or uniform")
    kind: PatternKind = Field(
        description="normal: z. scaled: m z. offset: m + z. one_sided: m |z|. constant: m. bounds: the domain's two "
        "bounds. alternating: m, -m, m, ... plus z. ties: c different numbers m z, each many times. equal_maxima: z, "
        "and c + 1 elements of a row hold the same largest number. sorted: m z, each row ascending, descending with "
        "place first. outliers: z, and c elements of a row are m times as large. sparse: zeros, and c elements of a "
        "row are m z. signed_zeros: m z, and half of the elements are 0 or -0. uneven_rows: z times powers of two "
        "between 1 and m, one for each run of c elements"
    )
    magnitude: float = Field(description="m, not 0 (but for constant); 1 where the kind has none")
    count: int = Field(description="c, from 1 to 4096; 1 where the kind has none")
    place: RowPlace = Field(description="where in a row chosen elements lie")
    axis: int = Field(description="along which rows lie: -1 for the last dimension, -2 for the one before")


class ProposedGenerator(ReplyModel):
    """One way to draw a problem's inputs; inputs without a pattern are drawn plainly."""

    patterns: list[ProposedPattern] = Field(
        description="a pattern for each input that is not drawn plainly; one or more"
    )
    catches: str = Field(description="which wrong kernel it catches, by what of the reference, in at most 40 words")


class ProposedGenerators(ReplyModel):
    """Generators of inputs that tell wrong kernels from right ones."""

    generators: list[ProposedGenerator] = Field(description="one to eight, each unlike the others")


class Asked(NamedTuple):
    """A valid reply with the prompt and the call that it came from."""

    value: Any
    prompt_sha256: str
    call_id: str
    cost_usd: float = 0.0  # known cost of all replies, including rejected ones


def ask(
    client: ModelClient,
    place: Place,
    *,
    system: str,
    user: str,
    reply: type[BaseModel],
    also: tuple[type[BaseModel], ...] = (),
    max_output_tokens: int,
    parameters: Mapping[str, int | float | str | bool] | None = None,
    check: Callable[[Any], str] = lambda value: "",
    on_text: Callable[[int], None] = lambda characters: None,
    draw: int = 0,
) -> Asked:
    """Ask a model for one structured reply. If it is not usable, ask once more and say what is wrong.

    Args:
        reply: the kind of reply that the prompt asks for.
        also: other kinds of replies that are accepted.
        check: returns what is wrong with a valid reply, or an empty string.
        draw: a different number gets a different answer to the same question.

    Raises:
        RoleFailed: two unusable replies, or no reply at all. ``data["cost_usd"]`` is the cost of the replies.
        AwaitingReply, BudgetReached, Stopped: as :meth:`ModelClient.ask`.
        ModelFault: the provider rejects the credentials (kind "credentials").
    """
    adapter: TypeAdapter[Any] = TypeAdapter(reply)
    others = [TypeAdapter(kind) for kind in also]
    messages: tuple[Message, ...] = (Message("user", user),)
    problem, spent_usd = "", 0.0
    for attempt in range(2):
        request = Request(
            system=system,
            messages=messages,
            schema_name=reply.__name__,
            schema=schema_of(reply),
            place=place._replace(attempt=attempt),
            max_output_tokens=max_output_tokens,
            parameters=parameters or {},
            draw=draw,
        )
        try:
            answer = client.ask(request, on_text=on_text)
        except ModelFault as fault:
            if fault.kind == "credentials":
                raise
            said = f"no reply from {client.spec}: {fault.kind}: {fault.message}"
            raise RoleFailed(said, cost_usd=spent_usd) from fault
        spent_usd += answer.cost_usd or 0.0
        value, problem = _parsed(answer.reply.text, answer.reply.stop, adapter, others)
        problem = problem or check(value)
        if not problem:
            return Asked(value, request.prompt_sha256, answer.call_id, spent_usd)
        messages = (
            *messages,
            Message("assistant", answer.reply.text or "(nothing)"),
            Message("user", f"That cannot be used: {problem[:_LONGEST_ERROR]}\nAnswer again, with the whole object."),
        )
    raise RoleFailed(f"no usable reply from {client.spec}: {problem[:_LONGEST_REASON]}", cost_usd=spent_usd)


def schema_of(reply: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema that a reply must have: every field required, nothing else allowed."""
    schema: dict[str, Any] = json.loads(_schema_text(reply))
    return schema


@functools.cache
def _schema_text(reply: type[BaseModel]) -> str:
    schema = reply.model_json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        part["required"] = list(part["properties"])
        for field in part["properties"].values():
            field.pop("default", None)
    return json.dumps(schema)


_MOST_INSIGHTS = 3
_LONGEST_INSIGHT = 300
_LONGEST_TAG = 40


def insights_of(found: Sequence[FoundInsight]) -> tuple[Insight, ...]:
    """The insights of a reply: at most three, the most severe first, cut to the longest allowed length."""
    ranked = sorted(found, key=lambda one: SEVERITIES.index(one.severity))
    return tuple(
        Insight(
            type=one.type,
            tag=re.sub(r"[^a-z0-9]+", "-", one.tag.lower()).strip("-")[:_LONGEST_TAG] or "other",
            severity=one.severity,
            text=" ".join(one.text.split())[:_LONGEST_INSIGHT],
        )
        for one in ranked[:_MOST_INSIGHTS]
        if one.text.strip()
    )


def _parsed(text: str, stop: str, adapter: TypeAdapter[Any], others: list[TypeAdapter[Any]]) -> tuple[Any, str]:
    """The value of a reply and what is wrong with it; one of both is empty."""
    if stop == "refused":
        return None, "it was refused"
    if stop == "length":
        return None, "it was cut off at the limit of its length (max_output_tokens); answer more shortly"
    text = _THOUGHTS.sub("", text)
    if not text.strip():
        return None, "it is empty; a model's reasoning counts towards max_output_tokens as well"
    fenced = _FENCE.match(text)
    first = ""
    for data in _objects(fenced[1] if fenced else text):
        for kind in (adapter, *others):
            try:
                return kind.validate_python(data), ""
            except ValidationError as error:
                first = first or "; ".join(
                    f"{'.'.join(str(part) for part in item['loc']) or 'the object'}: {item['msg']}"
                    for item in error.errors(include_url=False)[:5]
                )
    kernel = _kernel_in(text)
    for kind in (adapter, *others) if kernel is not None else ():
        with contextlib.suppress(ValidationError):
            return kind.validate_python(kernel), ""
    return None, first or "it has no JSON object"


def _objects(text: str) -> Iterator[Any]:
    """Possible JSON values in a reply: the whole text, or else objects that begin a line, the last one first."""
    with contextlib.suppress(ValueError, RecursionError):
        yield json.loads(text)
        return
    decoder = json.JSONDecoder()
    for start in reversed([match.start() for match in re.finditer(r"^[ \t]*\{", text, re.MULTILINE)]):
        with contextlib.suppress(ValueError, RecursionError):
            yield decoder.raw_decode(text, text.index("{", start))[0]


def _kernel_in(text: str) -> dict[str, str] | None:
    """A whole kernel in a fence among prose, as a kernel reply's data; None unless there is exactly one."""
    kernels = [fence for fence in _FENCES.finditer(text) if re.search(r"^class ModelNew\b", fence[2], re.MULTILINE)]
    if len(kernels) != 1:
        return None
    return {"plan": " ".join(text[: kernels[0].start()].split())[-_LONGEST_PLAN:], "source": kernels[0][2]}


def apply_edits(source: str, edits: list[Edit]) -> tuple[str, str]:
    """The edited source, and what is wrong with the edits; the source is only valid if nothing is wrong."""
    for number, edit in enumerate(edits, 1):
        count = source.count(edit.find) if edit.find else 0
        if count != 1:
            return source, f"edit {number}: its text to find occurs {count} times in the source, and must occur once"
        source = source.replace(edit.find, edit.replace)
    return source, ""


def unfenced(source: str) -> str:
    """A source without the Markdown fence that some models put around it."""
    fenced = _FENCE.match(source)
    text = fenced[1] if fenced else source
    return text if text.endswith("\n") else text + "\n"


def whole_kernel(reply: str, source: str | None) -> str:
    """A Coder's reply with its edits replaced by the whole resulting file; any other reply unchanged."""
    if source is None:
        return reply
    value, problem = _parsed(reply, "complete", TypeAdapter(EditReply), [])
    return reply if problem else KernelReply(plan=value.plan, source=source).model_dump_json()
