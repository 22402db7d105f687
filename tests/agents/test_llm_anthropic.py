"""Messages: where parameters go, what is cached, and what is text."""

from __future__ import annotations

import contextlib
import json

import pytest
from llm_asking import SCHEMA, fault_of, provider, request
from llm_server import Answer, Raw, Refusal, Tokens, serve

from kernelwright.errors import UsageError

SPEC = "anthropic:claude-sonnet-5"


def closing(server):
    return contextlib.closing(provider(server, SPEC))


def body_of(**parameters) -> dict:
    with serve(lambda asked: Answer("{}")) as server, closing(server) as asked:
        asked.send(request(**parameters))
        return server.asked[0].body


def test_effort_and_other_parameters_go_where_they_belong():
    body = body_of(effort="high", thinking="adaptive", service_tier="standard_only")
    assert body["output_config"] == {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "high"}
    assert body["thinking"] == {"type": "adaptive"}
    assert body["service_tier"] == "standard_only"
    assert body["max_tokens"] == 1000
    assert "effort" not in body
    assert body_of(thinking_budget=500)["thinking"] == {"type": "enabled", "budget_tokens": 500}
    assert "thinking" not in body_of()


def test_schemas_are_said_in_the_words_that_the_interface_allows():
    question = request()
    long = dict(SCHEMA) | {"properties": {"code": {"type": "string", "maxLength": 9}}}
    with serve(lambda asked: Answer("{}")) as server, closing(server) as asked:
        asked.send(question.__class__(**{**question.__dict__, "schema": long}))
        (seen,) = server.asked
    assert seen.schema is not None
    assert "maxLength" not in seen.schema["properties"]["code"]
    assert "maxLength: 9" in seen.schema["properties"]["code"]["description"]


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
def test_sampling_parameters_are_refused_before_anything_is_sent(name):
    with serve(lambda asked: Answer("{}")) as server, closing(server) as asked:
        with pytest.raises(UsageError, match=f"no {name} any more") as caught:
            asked.send(request(**{name: 1}))
        assert "effort" in caught.value.hint
        assert not server.asked


@pytest.mark.parametrize("name", ["speed", "inference_geo"])
def test_tariffs_that_no_table_knows_are_refused(name):
    with serve(lambda asked: Answer("{}")) as server, closing(server) as asked:
        with pytest.raises(UsageError, match=name):
            asked.send(request(**{name: "fast"}))
        assert not server.asked


def test_long_system_prompts_are_cached_and_empty_ones_left_out():
    with serve(lambda asked: Answer("{}")) as server, closing(server) as asked:
        for system in ("short", "long " * 1000, ""):
            asked.send(request(system=system))
        short, long, none = (seen.body.get("system") for seen in server.asked)
    assert short == [{"type": "text", "text": "short"}]
    assert long == [{"type": "text", "text": "long " * 1000, "cache_control": {"type": "ephemeral"}}]
    assert none is None


def test_thinking_is_no_text():
    heard: list[int] = []
    answer = Answer('{"code": ""}', Tokens(10, 50, reasoning=40), thinking="hmm " * 100)
    with serve(lambda asked: answer) as server, closing(server) as asked:
        reply = asked.send(request(), on_text=heard.append)
    assert reply.text == '{"code": ""}'
    assert heard[-1] == len(reply.text)
    assert reply.usage is not None
    assert (reply.usage.output_tokens, reply.usage.reasoning_tokens) == (50, 40)


def events(*parts: dict) -> Raw:
    lines = (f"event: {part['type']}\ndata: {json.dumps(part)}\n\n" for part in parts)
    return Raw("".join(lines).encode())


START = {
    "type": "message_start",
    "message": {"model": "m", "content": [], "usage": {"input_tokens": 7, "output_tokens": 1}},
}
TEXT = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "{}"}}
STOP = {"type": "message_stop"}


def delta(reason: str | None, **usage) -> dict:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("end_turn", "complete"),
        ("stop_sequence", "complete"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refused"),
    ],
)
def test_why_it_stopped(reason, stop):
    with serve(lambda asked: events(START, TEXT, delta(reason, output_tokens=3), STOP)) as server:
        with closing(server) as asked:
            reply = asked.send(request())
    assert (reply.text, reply.stop, reply.usage) == ("{}", stop, (7, 3, 0, 0, 0))


def test_the_last_word_on_usage_counts_and_half_of_it_is_none():
    whole = delta("end_turn", input_tokens=8, cache_read_input_tokens=20, output_tokens=3)
    for last, wanted in ((whole, (28, 3, 20, 0, 0)), (delta("end_turn"), None)):
        with serve(lambda asked, last=last: events(START, TEXT, last, STOP)) as server, closing(server) as asked:
            assert asked.send(request()).usage == wanted


@pytest.mark.parametrize(
    "parts",
    [
        [START, TEXT, delta("end_turn", output_tokens=3)],
        [START, TEXT, STOP],
        [START, TEXT, delta(None, output_tokens=3), STOP],
        [START, TEXT, delta("pause_turn", output_tokens=3), STOP],
        [TEXT | {"delta": {"type": "text_delta", "text": 5}}],
        [{"type": "content_block_delta"}],
        [START, TEXT, delta("end_turn", output_tokens="many"), STOP],
    ],
    ids=str,
)
def test_replies_that_are_none(parts):
    with serve(lambda asked: events(*parts)) as server, closing(server) as asked:
        assert fault_of(asked).kind == "cut-stream"


def test_limits_of_spending_are_no_limits_of_rate():
    details = {"error_code": "enforced_spend_limit_reached"}
    body = json.dumps({"type": "error", "error": {"type": "rate_limit_error", "message": "spent", "details": details}})
    with serve(lambda asked: Refusal(429, body=body)) as server, closing(server) as asked:
        assert fault_of(asked).kind == "credentials"
