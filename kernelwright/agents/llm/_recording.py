"""Recorded replies: one JSON object a line, looked up by their place in the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelwright.agents.llm._faults import ModelFault
from kernelwright.agents.llm._types import Place, Reply, Request, Stop
from kernelwright.errors import UsageError
from kernelwright.records import Record, sha256_text


class RecordedReply(Record):
    """One line of a recording. ``prompt`` is the prompt at the time of the recording."""

    problem: str
    step: int
    role: str
    sample: int = 0
    attempt: int = 0
    provider: str
    model: str
    reply: str
    stop: Stop = "complete"
    prompt: str = ""
    prompt_sha256: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None

    @property
    def place(self) -> Place:
        """The reply's place in the run."""
        return Place(self.problem, self.step, self.role, self.sample, self.attempt)


def read_recording(path: Path) -> dict[Place, RecordedReply]:
    """All replies of a recording by their places.

    Raises:
        UsageError: the file cannot be read, or a line is not a recorded reply.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read the recording {path}: {getattr(error, 'strerror', None) or error}",
            hint="'kernelwright runs record RUN -o FILE' makes one",
        ) from error
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            reply = RecordedReply.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the line"
            raise UsageError(
                f"{path}:{number}: no recorded reply: {where}: {first['msg']}",
                hint="'kernelwright runs record RUN -o FILE' makes recordings",
            ) from error
        found[reply.place] = reply
    return found


def write_recording(replies: Iterable[RecordedReply]) -> str:
    """The text of a recording."""
    rows: Iterable[dict[str, Any]] = (reply.model_dump(mode="json", exclude_defaults=True) for reply in replies)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


class ReplayProvider:
    """Returns the replies of a recording by their place in the run. ``model`` names its file and content.

    Prompts may differ from the recorded ones, since timings differ. A reply has the hash of its recorded prompt.
    """

    name = "replay"
    metered = False

    def __init__(self, path: Path) -> None:
        """Raises UsageError like :func:`read_recording`."""
        self._replies = read_recording(path)
        self.model = f"{path.name}@{sha256_text(path.read_bytes())[:12]}"

    @property
    def problems(self) -> frozenset[str]:
        """The problems for which it has replies."""
        return frozenset(place.problem for place in self._replies)

    def send(self, request: Request, *, on_text: Callable[[int], None] = lambda characters: None) -> Reply:
        """The recorded reply.

        Raises:
            ModelFault: there is no reply for this place (kind "rejected").
        """
        found = self._replies.get(request.place)
        if found is None:
            place = request.place
            raise ModelFault(
                f"the recording has no reply of the {place.role} for step {place.step} of {place.problem}",
                hint="it ends here",
                kind="rejected",
            )
        return Reply(found.reply, found.stop, None, 0.0, found.model, found.prompt_sha256)

    def close(self) -> None:
        """Do nothing, since nothing is held open."""
