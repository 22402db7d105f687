"""Data for supervised fine-tuning: an exported data set, a file of chats, or the recording of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from kernelwright.agents.llm import RecordedReply, recording_path
from kernelwright.errors import MissingToolError, UsageError
from kernelwright.records import Record

_PROMPT: Final = re.compile(r"\A\[system\]\n(?P<system>.*?)\n\n\[user\]\n(?P<user>.*)\Z", re.DOTALL)
_NAMES: Final = ("sft.jsonl", "sft/train.jsonl", "data/sft-train.jsonl")


class ChatMessage(Record):
    """One message of a chat."""

    role: str
    content: str


class Demonstration(Record):
    """A prompt and the answer to learn.

    Attributes:
        problem: the problem's id; empty if unknown.
    """

    prompt: tuple[ChatMessage, ...]
    completion: tuple[ChatMessage, ...]
    problem: str = ""


def demonstrations(data: str) -> list[Demonstration]:
    """The demonstrations in a folder, a file or a named recording.

    A folder is one that ``kernelwright rl export`` made. Each line of a file is an object with the chats ``prompt`` and
    ``completion``, or a recorded reply. Only complete replies of Coders to a first attempt count.

    Raises:
        UsageError: there is no such data, it cannot be read, or it holds no demonstration.
    """
    path = _file(data)
    found = [one for line in _lines(path) if (one := _read(line, path)) is not None]
    if not found:
        raise UsageError(f"{path} holds no demonstration", hint="it has no line with a prompt and a completion")
    return found


def _file(data: str) -> Path:
    if not data:
        raise UsageError(
            "no data is given", hint="--data FOLDER of 'kernelwright rl export', a .jsonl file, or a recording"
        )
    path = Path(data)
    if not path.is_dir():
        return recording_path(data)
    named = [path / name for name in _NAMES if (path / name).exists()]
    others = sorted(path.rglob("sft*.jsonl"))
    if not named and not others:
        raise UsageError(f"{path} holds no sft*.jsonl", hint="'kernelwright rl export --kind sft' writes one")
    return (named or others)[0]


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}", hint="--data FILE"
        ) from error


def _read(line: str, path: Path) -> Demonstration | None:
    """The demonstration of a line; None for a recorded reply that does not count."""
    try:
        row: dict[str, Any] = json.loads(line)
        if "reply" in row:
            return _of_reply(RecordedReply.model_validate(row))
        return Demonstration(prompt=row["prompt"], completion=row["completion"], problem=str(row.get("problem") or ""))
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise UsageError(
            f"{path} has a line that is not a demonstration: {str(error).splitlines()[0]}",
            hint='each line is an object with "prompt" and "completion", chats both, or a reply of a recording',
        ) from error


def _of_reply(reply: RecordedReply) -> Demonstration | None:
    prompt = _PROMPT.match(reply.prompt)
    if reply.role != "coder" or reply.attempt or reply.stop != "complete" or prompt is None:
        return None
    asked = (
        ChatMessage(role="system", content=prompt["system"]),
        ChatMessage(role="user", content=prompt["user"]),
    )
    return Demonstration(
        prompt=asked, completion=(ChatMessage(role="assistant", content=reply.reply),), problem=reply.problem
    )


def split(found: Sequence[Demonstration], held_out: Sequence[str]) -> tuple[list[Demonstration], list[Demonstration]]:
    """The demonstrations to learn from, and those on held-out problems, named by id or by the end of one."""

    def is_held(one: Demonstration) -> bool:
        return any(one.problem == name or one.problem.endswith(f"/{name}") for name in held_out)

    return [one for one in found if not is_held(one)], [one for one in found if is_held(one)]


def require_weights(model: str) -> Path:
    """The path of a model's folder.

    Raises:
        UsageError: there is no such folder, or no model in it.
        MissingToolError: the folder has no weights in safetensors.
    """
    folder = Path(model)
    if not (folder / "config.json").exists():
        raise UsageError(
            f"{model} is not the folder of a model", hint="--model tiny, or a folder with config.json and safetensors"
        )
    if not list(folder.glob("*.safetensors")):
        raise MissingToolError(
            f"{model} has no weights in safetensors", hint="weights in pickles are not loaded; convert them"
        )
    return folder
