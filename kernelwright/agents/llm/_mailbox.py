"""A folder as a language model: prompts are written as files, and a person or program writes replies beside them.

A file with the same stem as ``DIR/<problem>/step-03-coder-0-1a2b3c4d.prompt.md`` answers it. ``.reply.json`` holds the
object that the prompt asks for. ``.reply.md`` has a heading ``## field`` for each field, and below it the field's text
or one fenced block with it. A value that is not text (a list of edits) is JSON in a fenced block.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernelwright.agents.llm._faults import AwaitingReply
from kernelwright.agents.llm._types import Reply, Request
from kernelwright.errors import UsageError
from kernelwright.files import write_for_user

_SETTLED_S = 1.0  # a file that was changed more recently may be incomplete
_HEADING = re.compile(r"^## +(\w+) *$", re.MULTILINE)
_FENCED = re.compile(r"^(?P<fence>`{3,}|~{3,})[^\n]*\n(?P<body>.*?)^(?P=fence)\s*$", re.MULTILINE | re.DOTALL)


class MailboxProvider:
    """Provider of a mailbox folder. ``model`` is empty, so a reply to a prompt is reused in any folder."""

    name = "mailbox"
    model = ""
    metered = False

    def __init__(self, folder: Path, now: Callable[[], float] = time.time) -> None:
        """``now``: the clock of the files' times.

        Raises:
            UsageError: the folder cannot be written.
        """
        self._folder = folder.absolute()
        self._now = now
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"cannot use {folder} as a mailbox: {error.strerror}", hint="give --coder mailbox:DIR a folder of yours"
            ) from error

    def send(self, request: Request, *, on_text: Callable[[int], None] = lambda characters: None) -> Reply:
        """The reply in the folder. Without a reply, the prompt is written if it is not there yet.

        Raises:
            AwaitingReply: there is no reply yet.
            UsageError: the folder cannot be read or written.
        """
        stem = self._stem(request)
        for suffix, read in ((".reply.json", _from_json), (".reply.md", _from_markdown)):
            path = stem.with_name(stem.name + suffix)
            text = self._settled(path)
            if text is not None:
                return Reply(read(text, request.schema), "complete", None, 0.0)
        prompt = stem.with_name(f"{stem.name}.prompt.md")
        if not prompt.exists():
            write_for_user(
                prompt,
                _letter(request, stem.name),
                what="the prompt ",
                hint="give the mailbox a folder that can be written",
            )
        raise AwaitingReply(
            f"a reply is awaited in {stem}.reply.md (or .reply.json)",
            hint=f"read {prompt.name}, which says what to write",
            path=str(stem),
            prompt=str(prompt),
        )

    def close(self) -> None:
        """Do nothing, since nothing is held open."""

    def _stem(self, request: Request) -> Path:
        place = request.place
        again = f"-again{place.attempt}" if place.attempt else ""
        name = f"step-{place.step:02d}-{place.role}-{place.sample}{again}-{request.prompt_sha256[:8]}"
        return self._folder / re.sub(r"[^\w.-]+", ".", place.problem) / name

    def _settled(self, path: Path) -> str | None:
        """The text of a file, or None if it is missing, empty or possibly incomplete."""
        try:
            if self._now() - path.stat().st_mtime < _SETTLED_S:
                return None
            return path.read_text(encoding="utf-8") or None
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read the reply {path}: {error}", hint="give a readable text file") from error


def _from_json(text: str, schema: Mapping[str, Any]) -> str:
    return text


def _from_markdown(text: str, schema: Mapping[str, Any]) -> str:
    """The object in the sections of a Markdown reply, as JSON text. It is validated later."""
    fields: dict[str, Any] = {}
    marks = [mark for mark in _HEADING.finditer(text) if not _inside_a_fence(text, mark.start())]
    ends = [*(mark.start() for mark in marks), len(text)][1:]
    for mark, end in zip(marks, ends, strict=True):
        fields[mark[1]] = _value(text[mark.end() : end], schema.get("properties", {}).get(mark[1], {}))
    return json.dumps(fields)


def _inside_a_fence(text: str, position: int) -> bool:
    return any(block.start() < position < block.end() for block in _FENCED.finditer(text))


def _value(section: str, schema: Mapping[str, Any]) -> Any:
    block = _FENCED.search(section)
    body = block["body"] if block is not None else section.strip()
    if schema.get("type", "string") == "string":
        return body
    try:
        return json.loads(body)
    except ValueError:
        return body


def _letter(request: Request, stem: str) -> str:
    fields = ", ".join(request.schema.get("properties", {}))
    return (
        f"# To be answered in `{stem}.reply.md` or `{stem}.reply.json`\n\n"
        f"As JSON: one object with the fields {fields}. As Markdown: a heading `## field` for each of them, and below "
        "it its text; code in one fenced block; what is no text as JSON in a fenced block.\n\n"
        f"{request.prompt}\n"
    )
