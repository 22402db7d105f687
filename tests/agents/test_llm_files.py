"""Models that are files: a mailbox that somebody answers, and recordings."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kernelwright.agents.llm import (
    AwaitingReply,
    MailboxProvider,
    Message,
    ModelFault,
    Place,
    RecordedReply,
    ReplayProvider,
    Request,
    read_recording,
    write_recording,
)
from kernelwright.errors import UsageError

SCHEMA = {
    "type": "object",
    "properties": {"plan": {"type": "string"}, "source": {"type": "string"}, "edits": {"type": "array"}},
}
PLACE = Place("suite/level1/soft max", 3, "coder", 1)
MARKDOWN = """
## plan

Two rows at once.

## source
````python
import torch
TEXT = '''
## plan
```
'''
````

## edits
```json
[{"find": "a", "replace": "b"}]
```
"""


def request(text: str = "write a kernel", place: Place = PLACE) -> Request:
    return Request("you write kernels", (Message("user", text),), "Reply", SCHEMA, place, 1000)


def settled(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, (0, 0))


@pytest.fixture
def mailbox(tmp_path):
    return MailboxProvider(tmp_path / "box")


def stem_of(mailbox, asked: Request) -> Path:
    with pytest.raises(AwaitingReply) as awaited:
        mailbox.send(asked)
    return Path(awaited.value.data["path"])


def test_a_prompt_is_written_once_and_says_what_to_write(mailbox, tmp_path):
    stem = stem_of(mailbox, request())
    assert stem.parent == tmp_path / "box" / "suite.level1.soft.max"
    assert stem.name.startswith("step-03-coder-1-")
    prompt = stem.with_name(stem.name + ".prompt.md")
    text = prompt.read_text()
    assert "you write kernels" in text
    assert "write a kernel" in text
    assert f"{stem.name}.reply.md" in text
    before = prompt.stat().st_mtime_ns
    assert stem_of(mailbox, request()) == stem
    assert prompt.stat().st_mtime_ns == before


def test_a_reply_in_json_is_taken_as_it_is(mailbox):
    stem = stem_of(mailbox, request())
    settled(stem.with_name(stem.name + ".reply.json"), '{"plan": "p"}')
    assert mailbox.send(request()).text == '{"plan": "p"}'


def test_a_reply_without_any_heading_is_for_the_validation_to_refuse(mailbox):
    stem = stem_of(mailbox, request())
    settled(stem.with_name(stem.name + ".reply.md"), "Here is my kernel:\n\n```python\nimport torch\n```\n")
    assert json.loads(mailbox.send(request()).text) == {}


def test_a_reply_in_markdown_becomes_the_object(mailbox):
    stem = stem_of(mailbox, request())
    settled(stem.with_name(stem.name + ".reply.md"), MARKDOWN)
    assert json.loads(mailbox.send(request()).text) == {
        "plan": "Two rows at once.",
        "source": "import torch\nTEXT = '''\n## plan\n```\n'''\n",
        "edits": [{"find": "a", "replace": "b"}],
    }


def test_a_file_that_may_still_be_written_is_left_alone(tmp_path):
    now = [100.0]
    mailbox = MailboxProvider(tmp_path, now=lambda: now[0])
    stem = stem_of(mailbox, request())
    path = stem.with_name(stem.name + ".reply.json")
    path.write_text('{"plan"')
    os.utime(path, (99.5, 99.5))
    assert stem_of(mailbox, request()) == stem
    now[0] = 101.0
    assert mailbox.send(request()).text == '{"plan"'


def test_an_empty_file_is_no_reply(mailbox):
    stem = stem_of(mailbox, request())
    settled(stem.with_name(stem.name + ".reply.json"), "")
    assert stem_of(mailbox, request()) == stem


@pytest.mark.parametrize(
    "other",
    [request("something else"), request(place=PLACE._replace(attempt=1)), request(place=PLACE._replace(step=4))],
)
def test_another_question_has_another_file(mailbox, other):
    assert stem_of(mailbox, request()) != stem_of(mailbox, other)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file"):
        MailboxProvider(tmp_path / "file" / "box")


def test_a_reply_that_is_no_text_is_named(mailbox):
    stem = stem_of(mailbox, request())
    path = stem.with_name(stem.name + ".reply.json")
    path.write_bytes(b"\xff\xfe\x00")
    os.utime(path, (0, 0))
    with pytest.raises(UsageError, match=r"reply\.json"):
        mailbox.send(request())


# ---------------------------------------------------------------------------------------------- recordings


def recorded(**more) -> RecordedReply:
    values = {
        "problem": PLACE.problem,
        "step": 3,
        "role": "coder",
        "sample": 1,
        "provider": "openai",
        "model": "gpt",
        "reply": "ünicode\n",
        "prompt_sha256": "0" * 64,
    }
    return RecordedReply(**{**values, **more})


def test_a_recording_gives_replies_at_their_places_whatever_the_prompt(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(write_recording([recorded(), recorded(step=4, reply="later", stop="length")]))
    replay = ReplayProvider(path)
    assert not replay.metered
    assert replay.problems == {PLACE.problem}
    reply = replay.send(request("a prompt with other timings"))
    assert (reply.text, reply.stop, reply.model) == ("ünicode\n", "complete", "gpt")
    assert reply.recorded_prompt == "0" * 64
    assert replay.send(request(place=PLACE._replace(step=4))).stop == "length"


@pytest.mark.parametrize("place", [PLACE._replace(step=9), PLACE._replace(sample=0), PLACE._replace(role="judge")])
def test_a_place_without_a_reply_is_told(tmp_path, place):
    path = tmp_path / "run.jsonl"
    path.write_text(write_recording([recorded()]))
    with pytest.raises(ModelFault, match="no reply") as raised:
        ReplayProvider(path).send(request(place=place))
    assert raised.value.kind == "rejected"


def test_another_recording_of_the_same_name_is_another_model(tmp_path):
    models = set()
    for folder, reply in (("a", "one"), ("b", "two")):
        path = tmp_path / folder / "run.jsonl"
        path.parent.mkdir()
        path.write_text(write_recording([recorded(reply=reply)]))
        models.add(ReplayProvider(path).model)
    assert len(models) == 2
    assert not any("/" in model for model in models)


def test_what_is_no_recording_is_named_with_its_line(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(write_recording([recorded()]) + '\n{"problem": "x"}\n')
    with pytest.raises(UsageError, match=r"run\.jsonl:3: no recorded reply: step"):
        read_recording(path)
    with pytest.raises(UsageError, match=r"nowhere\.jsonl"):
        read_recording(tmp_path / "nowhere.jsonl")
