"""Finds the kernel in a completion: in the JSON reply that was asked for, in a fenced block, or in bare text."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from pydantic import ValidationError

from kernelwright.rl._scoring import MOST_SOURCE_CHARACTERS

MOST_COMPLETION_CHARACTERS: Final = 2 * MOST_SOURCE_CHARACTERS
MOST_PLAN_CHARACTERS: Final = 1_000
_THOUGHT: Final = ("<think>", "</think>")
_FENCES: Final = ("```", "~~~")
_PYTHON: Final = frozenset({"python", "py", "python3", ""})
_KERNEL: Final = "class ModelNew"


class Found(NamedTuple):
    """The kernel of a completion, or in ``fault`` the reason why there is none."""

    source: str = ""
    plan: str = ""
    fault: str = ""


class _Block(NamedTuple):
    """A fenced block of a text: the word after its opening fence, and the enclosed text."""

    word: str
    text: str


def kernel_of(completion: str) -> Found:
    """The kernel of a completion: a reply as a Coder gives it, else the last fenced Python block, else the whole text.

    Thoughts are ignored. A text that is not Python, or has no ``class ModelNew`` at its top level, is no kernel.
    """
    if len(completion) > MOST_COMPLETION_CHARACTERS:
        return Found(fault=f"it is longer than {MOST_COMPLETION_CHARACTERS:,} characters")
    text = completion.rpartition(_THOUGHT[1])[2]
    if _THOUGHT[0] in text:
        return Found(fault="it ends within its thoughts, without an answer")
    if not text.strip():
        return Found(fault="it is empty")
    found = _reply(text.strip())
    if found is None:
        found = _in_a_fence(text) or Found(text.strip("\n") + "\n")
    return found if found.fault else _checked(found)


def _reply(text: str) -> Found | None:
    """The kernel in a JSON object; None if the text is not a JSON object."""
    from kernelwright.agents.replies import KernelReply, unfenced

    bare = unfenced(text).strip()
    if not bare.startswith("{"):
        return None
    try:
        data = json.loads(bare)
    except (ValueError, RecursionError):
        return None
    try:
        reply = KernelReply.model_validate(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:80]
        return Found(fault=f"its JSON object does not fit the schema: {where or 'the object'}: {first['msg'][:200]}")
    return Found(unfenced(reply.source), " ".join(reply.plan.split())[:MOST_PLAN_CHARACTERS])


def _in_a_fence(text: str) -> Found | None:
    """The kernel of the last fenced block that may be one; None if no fence is closed."""
    blocks = _blocks(text)
    for block in reversed(blocks):
        if block.word == "json" and (found := _reply(block.text)) is not None:
            return found
        if block.word in _PYTHON and (block.word or _KERNEL in block.text):
            return Found(block.text.rstrip("\n") + "\n")
    return Found(fault="none of its fenced blocks is Python") if blocks else None


def _blocks(text: str) -> list[_Block]:
    """The fenced blocks, in order. A fence that is never closed encloses nothing."""
    found: list[_Block] = []
    lines: list[str] = []
    fence = word = ""
    for line in text.splitlines():
        bare = line.strip()
        if not fence:
            mark = next((mark for mark in _FENCES if bare.startswith(mark)), "")
            if mark:
                fence = bare[: len(bare) - len(bare.lstrip(mark[0]))]
                word, lines = bare[len(fence) :].strip().lower().split(" ")[0], []
        elif bare == fence:
            found.append(_Block(word, "\n".join(lines)))
            fence = ""
        else:
            lines.append(line)
    return found


def _checked(found: Found) -> Found:
    from kernelwright.agents.model_roles import why_no_candidate

    if len(found.source) > MOST_SOURCE_CHARACTERS:
        return Found(fault=f"its kernel is longer than {MOST_SOURCE_CHARACTERS:,} characters")
    try:
        found.source.encode()
        found.plan.encode()
    except UnicodeEncodeError:
        return Found(fault="it holds characters that no text has")
    fault = why_no_candidate(found.source)
    return Found(plan=found.plan, fault=fault) if fault else found
