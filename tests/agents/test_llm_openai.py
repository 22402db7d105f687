"""Chat completions: what is asked, and what servers that know less of it get."""

from __future__ import annotations

import contextlib
import json

import httpx2
import pytest
from llm_asking import SCHEMA, fault_of, provider, request, settings_for
from llm_server import Answer, Asked, Raw, Refusal, StreamError, not_supported, serve

from kernelwright.agents.llm import metered_provider
from kernelwright.agents.llm._openai import OpenAIProvider
from kernelwright.errors import UsageError

SPEC = "openai:some/model:free"


def closing(server):
    return contextlib.closing(provider(server, SPEC))


def form_of(asked: Asked) -> str:
    return asked.body.get("response_format", {"type": "none"})["type"]


def test_the_body_has_the_schema_the_limit_and_the_parameters_as_they_are():
    parameters = {"temperature": 0.5, "seed": 7, "reasoning_effort": "high", "top_k": 40, "service_tier": "default"}
    with serve(lambda asked: Answer("{}")) as server, closing(server) as asked:
        asked.send(request(**parameters))
        body = server.asked[0].body
    assert body["messages"][0] == {"role": "system", "content": "You write kernels."}
    assert body["messages"][1:] == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "write it"},
    ]
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "kernel", "schema": SCHEMA, "strict": True},
    }
    assert body["stream_options"] == {"include_usage": True}
    assert body["max_completion_tokens"] == body["max_tokens"] == 1000
    assert body["model"] == "some/model:free"
    assert body | parameters == body


def knows_less(*refused: str):
    """A script of a server that refuses some features, in the words of its kind."""

    def script(asked: Asked):
        form = form_of(asked)
        if form in refused:
            return Refusal(400, f"Invalid value: '{form}'", "invalid_request_error", "response_format.type")
        for name in ("stream_options", "max_completion_tokens"):
            if name in refused and name in asked.body:
                return not_supported(name, param=name)
        return Answer("{}")

    return script


@pytest.mark.parametrize(
    ("refused", "form"),
    [(["json_schema"], "json_object"), (["json_schema", "json_object"], "none"), ([], "json_schema")],
)
def test_servers_that_refuse_a_format_get_a_simpler_one_and_it_is_remembered(refused, form):
    with serve(knows_less(*refused)) as server, closing(server) as asked:
        assert asked.send(request()).text == "{}"
        assert len(server.asked) == 1 + len(refused)
        asked.send(request())
        assert len(server.asked) == 2 + len(refused)
        assert form_of(server.asked[-1]) == form
        assert server.totals[asked.model].replies == 2
        assert server.asked[-1].messages == server.asked[0].messages


def test_servers_without_usage_in_streams_and_with_the_old_limit_are_asked_their_way():
    with (
        serve(knows_less("stream_options", "max_completion_tokens", "json_schema")) as server,
        closing(server) as asked,
    ):
        reply = asked.send(request())
        assert reply.usage is None
        assert len(server.asked) == 5
        asked.send(request())
        body = server.asked[-1].body
        assert len(server.asked) == 6
    assert body["max_tokens"] == 1000
    assert "max_completion_tokens" not in body
    assert "stream_options" not in body


def one_limit(asked: Asked):
    """As OpenAI's newer models are behind a gateway."""
    if {"max_tokens", "max_completion_tokens"} <= asked.body.keys():
        return Refusal(400, "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.")
    if "max_tokens" in asked.body:
        return Refusal(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
    return Answer("{}")


def test_servers_that_want_one_limit_get_the_newer_one():
    with serve(one_limit) as server, closing(server) as asked:
        asked.send(request())
        asked.send(request())
        assert len(server.asked) == 3
        assert server.asked[-1].body["max_completion_tokens"] == 1000


def test_the_vendor_itself_is_given_one_limit():
    bodies = []

    def answer(sent: httpx2.Request) -> httpx2.Response:
        bodies.append(json.loads(sent.content))
        return httpx2.Response(200, content=chunks(choice("stop", content="{}")).data)

    with httpx2.Client(transport=httpx2.MockTransport(answer)) as client:
        url = "https://api.openai.com/v1"
        OpenAIProvider("m", api_key="k", base_url=url, timeout_s=5, http_client=client).send(request())
    assert bodies[0]["max_completion_tokens"] == 1000
    assert "max_tokens" not in bodies[0]


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(422, body='{"detail": "Extra inputs are not permitted: stream_options"}'),
        Refusal(400, body='{"object": "error", "message": "unknown field stream_options", "code": 400}'),
        Refusal(400, body='{"error": "stream_options is not supported"}'),
        Refusal(400, body="stream_options: unrecognized"),
    ],
    ids=lambda refusal: refusal.body[:12],
)
def test_refusals_are_read_in_every_form(refusal):
    script = lambda asked: refusal if "stream_options" in asked.body else Answer("{}")  # noqa: E731
    with serve(script) as server, closing(server) as asked:
        asked.send(request())
        assert len(server.asked) == 2


def test_a_value_that_is_refused_is_no_feature_that_is_missing():
    message = "max_completion_tokens is too large: this model supports at most 500"
    with serve(lambda asked: Refusal(400, message, param="max_completion_tokens")) as server, closing(server) as asked:
        found = fault_of(asked)
        assert found.kind == "rejected"
        assert message in str(found)
        assert len(server.asked) == 1


def test_what_goes_wrong_without_the_feature_as_well_teaches_nothing():
    moods = iter([*[not_supported("response_format")] * 3, Answer("{}")])
    with serve(lambda asked: next(moods)) as server, closing(server) as asked:
        assert fault_of(asked).kind == "rejected"
        assert [form_of(seen) for seen in server.asked] == ["json_schema", "json_object", "none"]
        asked.send(request())
        assert form_of(server.asked[-1]) == "json_schema"


def test_other_refusals_are_not_sent_again():
    with serve(lambda asked: Refusal(400, "the prompt is too long")) as server, closing(server) as asked:
        assert fault_of(asked).kind == "rejected"
        assert len(server.asked) == 1


def chunks(*parts: dict) -> Raw:
    return Raw(b"".join(b"data: " + json.dumps(part).encode() + b"\n\n" for part in parts) + b"data: [DONE]\n\n")


def choice(finish: str | None = None, **delta) -> dict:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


@pytest.mark.parametrize(
    ("finish", "stop"),
    [
        ("stop", "complete"),
        ("eos", "complete"),
        ("end_turn", "complete"),
        ("length", "length"),
        ("content_filter", "refused"),
    ],
)
def test_why_it_stopped(finish, stop):
    with serve(lambda asked: chunks(choice(content="{}"), choice(finish))) as server, closing(server) as asked:
        reply = asked.send(request())
    assert (reply.text, reply.stop, reply.usage, reply.model) == ("{}", stop, None, "")


@pytest.mark.parametrize(
    "parts",
    [
        [choice(content="{}")],
        [choice("abort", content="{}")],
        [choice("insufficient_system_resource")],
        [{"choices": "abc"}],
        [choice("stop", content=5)],
        [choice("stop", content=[5])],
        [choice("stop", content=[{"type": "text"}])],
        [choice("stop", content="{}"), {"choices": [], "usage": {"prompt_tokens": "many", "completion_tokens": 1}}],
    ],
    ids=str,
)
def test_replies_that_are_none(parts):
    with serve(lambda asked: chunks(*parts)) as server, closing(server) as asked:
        assert fault_of(asked).kind == "cut-stream"


def test_a_whole_reply_is_taken_where_a_stream_was_asked_for():
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
    said = {"role": "assistant", "content": "{}"}
    body = {"model": "m", "choices": [{"index": 0, "message": said, "finish_reason": "stop"}], "usage": usage}
    whole = Raw(json.dumps(body).encode(), "application/json; charset=utf-8")
    with serve(lambda asked: whole) as server, closing(server) as asked:
        reply = asked.send(request())
    assert (reply.text, reply.stop, reply.model, reply.usage) == ("{}", "complete", "m", (9, 4, 0, 0, 0))


def test_a_text_in_parts_is_one_text():
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hmm"}]}, {"type": "text", "text": "{"}]
    script = chunks(choice("", content=parts), choice("stop", content=[{"type": "text", "text": "}"}]), {"choices": []})
    whole = {"choices": [{"message": {"content": [{"type": "text", "text": "{}"}]}, "finish_reason": "stop"}]}
    for answer in (script, Raw(json.dumps(whole).encode(), "application/json")):
        with serve(lambda asked, reply=answer: reply) as server, closing(server) as asked:
            assert asked.send(request()).text == "{}"


PAGE = Raw(b"<!doctype html><title>hello</title>", "text/html")
NO_REPLIES = {
    "a web page": (PAGE, "rejected", "text/html, no event stream: is the base URL right?", False),
    "an error": ({"error": {"message": "no such thing"}}, "rejected", "no such thing", False),
    "an error with a status": ({"error": {"message": "gone", "code": 502}}, "server-error", "gone", False),
    "no money": ({"error": {"message": "pay", "code": "insufficient_quota"}}, "credentials", "pay", False),
    "no choices": ({"choices": []}, "rejected", "no choices", False),
    "no choices, counted": (
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}},
        "rejected",
        "no choices",
        True,
    ),
    "no object": ([1], "rejected", "application/json, no event stream", False),
    "a broken one": (
        {"choices": [{"message": {"content": 5}, "finish_reason": "stop"}]},
        "cut-stream",
        "cannot be read",
        True,
    ),
}


@pytest.mark.parametrize(("answer", "kind", "words", "billed"), NO_REPLIES.values(), ids=NO_REPLIES)
def test_an_answer_that_is_no_stream_says_what_it_is(answer, kind, words, billed):
    raw = answer if isinstance(answer, Raw) else Raw(json.dumps(answer).encode(), "application/json")
    with serve(lambda asked: raw) as server, closing(server) as asked:
        fault = fault_of(asked)
    assert (fault.kind, fault.may_be_billed) == (kind, billed), fault.message
    assert words in fault.message


def test_a_short_key_is_no_secret_and_blanks_nothing_out():
    with serve(lambda asked: Refusal(400, "Unexpected fields: none", "invalid_request_error")) as server:
        with contextlib.closing(metered_provider(SPEC, settings_for(server), {"OPENAI_API_KEY": "x"})) as asked:
            assert "Unexpected fields: none" in fault_of(asked).message


def test_usage_as_other_servers_say_it():
    deepseek = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_cache_hit_tokens": 5}
    partial = {"prompt_tokens": 9}
    for said, wanted in ((deepseek, (9, 4, 5, 0, 0)), (partial, None)):
        reply_chunks = chunks(choice("stop", content="{}"), {"choices": [], "usage": said})
        with serve(lambda asked, reply=reply_chunks: reply) as server, closing(server) as asked:
            assert asked.send(request()).usage == wanted


def test_reasoning_is_no_text():
    script = chunks(choice("", reasoning_content="hmm"), choice("stop", content="{}"), {"choices": []})
    with serve(lambda asked: script) as server, closing(server) as asked:
        assert asked.send(request()).text == "{}"


@pytest.mark.parametrize(
    ("code", "kind"),
    [(429, "rate-limit"), ("rate_limit_exceeded", "rate-limit"), (503, "overloaded"), (None, "server-error")],
)
def test_an_error_in_a_stream_may_have_a_status_as_its_code(code, kind):
    with serve(lambda asked: StreamError("SomeError", code=code)) as server, closing(server) as asked:
        assert fault_of(asked).kind == kind


def test_tariffs_that_no_table_knows_are_refused():
    with serve(lambda asked: Answer("{}")) as server, closing(server) as asked:
        for parameters in ({"service_tier": "priority"}, {"n": 2}):
            with pytest.raises(UsageError):
                asked.send(request(**parameters))
        assert not server.asked
