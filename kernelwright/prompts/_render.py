"""Renders a prompt from its name and views, with a hash over the whole prompt."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import jinja2

from kernelwright.errors import UsageError
from kernelwright.prompts import _quoting as quoting
from kernelwright.prompts._history import MAX_MOVES, label, table
from kernelwright.prompts._views import KernelView
from kernelwright.records import Interval, KernelResources, KnobValue, Record, sha256_text

__all__ = ["Prompt", "assignment", "evidence", "names", "render"]

_TEMPLATES = Path(__file__).with_name("templates")
_MAX_PARAGRAPH_CHARS = 2_000


class Prompt(Record):
    """A rendered prompt: the texts for a model, and the name of the template."""

    name: str
    system: str
    user: str

    @property
    def text(self) -> str:
        """Both parts as one text. It is hashed, and stored as a blob of kind "prompt"."""
        return f"[system]\n{self.system}\n\n[user]\n{self.user}"

    @property
    def sha256(self) -> str:
        """Hash of :attr:`text`."""
        return sha256_text(self.text)


class _Part(NamedTuple):
    """One kind of prompt: its role, which has a system template, its required data, and its optional data."""

    role: str
    needs: frozenset[str]
    takes: Mapping[str, Any]


def _part(role: str, needs: str, **takes: Any) -> _Part:
    return _Part(role, frozenset(needs.split()) | {"schema_text"}, takes)


_WITH_HISTORY: Final[Mapping[str, Any]] = {"history": (), "history_limit": MAX_MOVES}
_OF_CODERS: Final[Mapping[str, Any]] = {
    **_WITH_HISTORY,
    "failures": (),
    "exemplar": None,
    "advice": None,
    "inspirations": (),
    "contrast": False,
    "insights": (),
    "scratchpad": "",
}
_WITH_PAID: Final[Mapping[str, Any]] = {**_OF_CODERS, "paid": ()}
_PARTS: Final[Mapping[str, _Part]] = {
    "coder-cross": _part("coder", "task device parents", **_OF_CODERS),
    "coder-edit": _part("coder", "task device kernel", **_WITH_PAID),
    "coder-improve": _part("coder", "task device kernel", **_WITH_PAID),
    "coder-new": _part("coder", "task device", **_WITH_PAID),
    "coder-repair": _part("coder", "task device kernel", **_OF_CODERS),
    "coder-simplify": _part("coder", "task device kernel", **_OF_CODERS),
    "coder-transfer": _part("coder", "task device kernel moves", **_OF_CODERS, diff=""),
    "judge-optimise": _part("judge", "task device kernel", **_WITH_HISTORY),
    "judge-repair": _part("judge", "task device kernel", **_WITH_HISTORY),
    "scratchpad": _part(
        "scratchpad", "task device", **_WITH_HISTORY, failures=(), insights=(), scratchpad="", most_characters=1500
    ),
    "tester": _part("tester", "task", known=(), survivors=()),
    "verifier": _part("verifier", "task device kernel"),
}


def names() -> tuple[str, ...]:
    """Every prompt that can be rendered, sorted."""
    return tuple(sorted(_PARTS))


def render(name: str, **data: Any) -> Prompt:
    """Render one prompt.

    The system part depends on the name, the backend and ``schema_text`` alone, so that providers can cache it.

    Args:
        name: one of :func:`names`.
        data: ``schema_text`` (our JSON schema of the reply) and ``task`` (:class:`Task`). All but the tester need
            ``device`` (:class:`DeviceFacts`). Repair, improve, edit, simplify, transfer, both judges and the verifier
            need a ``kernel`` (:class:`KernelView`, judged except for the verifier). Cross needs two ``parents``, and
            transfer needs ``moves`` (measured elsewhere, a line each; with ``diff``, the change made there). Coders and
            judges take ``history`` (:class:`Move`, oldest first) with ``history_limit``. Coders take an ``exemplar``,
            ``advice`` (:class:`~kernelwright.records.Advice`), ``failures`` (why earlier answers led to no verdict, a
            line each), ``inspirations`` (judged kernels for the same task; ``contrast`` asks to compare their speeds),
            ``insights`` of Judges (a line each) and the ``scratchpad`` (lessons so far). New, improve and edit also
            take ``paid`` (moves that paid off elsewhere, a line each). The scratchpad takes history, failures,
            insights, its predecessor and ``most_characters``. The tester takes ``known`` (descriptions of generators,
            one a line) and ``survivors`` (wrong kernels that passed so far).

    Raises:
        UsageError: there is no such prompt.
        TypeError: data is missing or unknown, or a kernel with evidence to show was not judged.
    """
    part = _PARTS.get(name)
    if part is None:
        near = difflib.get_close_matches(name, names(), n=2) or names()
        raise UsageError(f"no prompt is called {name!r}", hint=f"there is {', '.join(near)}")
    missing, unknown = part.needs - set(data), set(data) - part.needs - set(part.takes)
    if missing or unknown:
        wrong = [f"lacks {', '.join(sorted(missing))}"] * bool(missing)
        wrong += [f"takes no {', '.join(sorted(unknown))}"] * bool(unknown)
        raise TypeError(f"the prompt {name} {' and '.join(wrong)}")
    given = {**part.takes, **data}
    if part.role != "verifier" and any(kernel.status is None for kernel in _kernels(given)):
        raise TypeError(f"the prompt {name} shows evidence, and a kernel has none: it was not judged")
    head = {"name": name, "backend": given["task"].backend, "schema_text": given["schema_text"]}
    templates = _environment()
    system = templates.get_template(f"{part.role}.system.j2").render(head)
    user = templates.get_template(f"{name}.user.j2").render(given)
    return Prompt(name=name, system=_tidy(system), user=_tidy(user))


def evidence(kernel: KernelView) -> str:
    """The evidence on one judged kernel and the messages of its compiler, quoted as in every prompt.

    Raises:
        TypeError: the kernel was not judged.
    """
    if kernel.status is None:
        raise TypeError("the kernel has no evidence: it was not judged")
    given: Any = _environment().get_template("_given.j2").module
    return _tidy(f"{given.evidence(kernel)}\n{given.messages(kernel)}")


def assignment(name: str) -> str:
    """The assignment in a Coder's prompt of :func:`names`, without the data that the prompt shows.

    Raises:
        UsageError: no Coder's prompt has that name.
    """
    if name not in _PARTS or _PARTS[name].role != "coder":
        known = ", ".join(one for one in names() if _PARTS[one].role == "coder")
        raise UsageError(f"no Coder's prompt is called {name!r}", hint=f"there is {known}")
    return _tidy(_environment().get_template(f"assignments/{name}.j2").render())


def _kernels(given: Mapping[str, Any]) -> list[KernelView]:
    return [
        *([given["kernel"]] if "kernel" in given else []),
        *given.get("parents", ()),
        *given.get("inspirations", ()),
    ]


@functools.cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "bare_evidence": _bare_evidence,
        "bare_messages": quoting.without_quoted_comments,
        "fence": quoting.fence,
        "interval": _interval,
        "label": label,
        "line": quoting.one_line,
        "lines": lambda texts: quoting.cut_middle("\n".join(map(quoting.one_line, texts))),
        "messages": quoting.last_lines,
        "ms": _milliseconds,
        "paragraph": lambda text: quoting.one_line(text, _MAX_PARAGRAPH_CHARS),
        "resources": _resources,
        "settings": _settings,
        "source": lambda text: quoting.cut_middle(text.rstrip("\n")),
        "excerpt": lambda text: quoting.cut_middle(quoting.readable(text).rstrip("\n"), quoting.MAX_EXCERPT_CHARS),
        "aside": lambda text: quoting.cut_middle(text.rstrip("\n"), quoting.MAX_ASIDE_CHARS),
        "table": table,
        "uncommented": quoting.strip_comments,
    }
    return made


def _tidy(text: str) -> str:
    """The text without trailing blanks and repeated empty lines. Inside of fences, every byte stays."""
    lines: list[str] = []
    closing = ""
    for line in text.strip("\n").split("\n"):
        if closing:
            lines.append(line)
            closing = "" if line == closing else closing
            continue
        bare = line.rstrip()
        if bare or (lines and lines[-1]):
            lines.append(bare)
        if bare.startswith("<<<<<< "):
            closing = ">>>>>>" + bare.removeprefix("<<<<<<")
    return "\n".join(lines) + "\n"


def _bare_evidence(kernel: KernelView) -> KernelView:
    """The kernel without comments in the source that reasons and findings quote."""
    bare = quoting.without_quoted_comments
    findings = tuple(f.model_copy(update={"evidence": bare(f.evidence)}) for f in kernel.findings)
    return kernel.model_copy(update={"reason": bare(kernel.reason), "findings": findings})


def _interval(value: Interval) -> str:
    return f"{value.median:.2f}x [{value.low:.2f}, {value.high:.2f}]"


def _milliseconds(value: float) -> str:
    return f"{value:.4g} ms" if value >= 1 else f"{1000 * value:.4g} us"


def _settings(values: Mapping[str, KnobValue]) -> str:
    named = ", ".join(f"{name}={value!r}" for name, value in values.items())
    return quoting.one_line(named) or "the reference's own constants"


def _resources(used: KernelResources) -> str:
    """The resources that one GPU kernel takes, each with its unit."""
    counts: Sequence[tuple[object, str]] = (
        (used.registers, "registers a thread"),
        (used.spilled_bytes, "bytes spilled a thread"),
        (used.stack_bytes, "bytes of stack a thread"),
        (used.shared_bytes, "bytes of shared memory a block"),
        (used.block, "threads a block"),
        (used.barriers, "barriers"),
        (used.blocks_per_processor, "blocks a multiprocessor"),
    )
    parts = [f"{value} {unit}" for value, unit in counts if value is not None]
    if used.occupancy is not None:
        parts.append(f"occupancy at most {used.occupancy:.0%}" + (f" by {used.limiter}" if used.limiter else ""))
    for counted in (used.global_accesses, used.matrix_instructions):
        parts += [", ".join(f"{count} {name}" for name, count in sorted(counted.items())[:8])] * bool(counted)
    knobs = [f"with {_settings(used.knobs)}"] if used.knobs else []
    faults = [f"cannot be launched: {used.problem}"] if used.problem else []
    return quoting.one_line("; ".join([*parts, *knobs, *faults]))
