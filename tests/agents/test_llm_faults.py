"""Both vendors' faults, limits and secrets: what the real SDKs make of a server that fails as vendors do."""

from __future__ import annotations

import contextlib
import email.utils
import logging
import pickle
import socket
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from llm_asking import KEY, KEYS, SPECS, fault_of, provider, request, settings_for
from llm_server import (
    Answer,
    Asked,
    Comments,
    Cut,
    Hang,
    Hangup,
    Raw,
    Refusal,
    StreamError,
    Tokens,
    Totals,
    overloaded,
    rate_limited,
    serve,
)

from kernelwright.agents.llm import RETRIED, metered_provider, vendors_own
from kernelwright.config import Settings
from kernelwright.errors import MissingToolError, UsageError

pytestmark = pytest.mark.parametrize("spec", SPECS)


def closing(server, spec, timeout_s=30.0):
    return contextlib.closing(provider(server, spec, timeout_s))


# ------------------------------------------------------------------------------------------------ one fault, one kind


@pytest.mark.parametrize(
    "answer", [Raw(b'{"id": "x"}', "application/json"), Raw(b"<html>", "text/html; charset=utf-8")]
)
def test_an_answer_that_is_no_stream_is_rejected_and_costs_nothing(spec, answer):
    with serve(lambda asked: answer) as server, closing(server, spec) as asked:
        found = fault_of(asked)
    assert (found.kind, found.may_be_billed) == ("rejected", False)
    assert "no " in found.message
    assert answer.content_type.partition(";")[0] in found.message or "no choices" in found.message


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (rate_limited(), "rate-limit"),
        (Refusal(503, "busy", "api_error"), "overloaded"),
        (overloaded(), "overloaded"),
        (Refusal(500, "Overloaded", "overloaded_error"), "overloaded"),
        (Refusal(500, "oops", "api_error"), "server-error"),
        (Refusal(502, body="<html>Bad Gateway</html>"), "server-error"),
        (Refusal(504, "slow", "timeout_error"), "server-error"),
        (Refusal(408, "slow"), "timeout"),
        (Refusal(400, "no such parameter", "invalid_request_error"), "rejected"),
        (Refusal(404, "no such model", "not_found_error"), "rejected"),
        (Refusal(409, "conflict"), "rejected"),
        (Refusal(413, "too long", "request_too_large"), "rejected"),
        (Refusal(422, "cannot", body='{"detail": "cannot"}'), "rejected"),
        (Refusal(401, "who are you", "authentication_error"), "credentials"),
        (Refusal(402, "pay first", "billing_error"), "credentials"),
        (Refusal(403, "not you", "permission_error"), "credentials"),
        (Refusal(429, "you are out of money", "insufficient_quota", code="insufficient_quota"), "credentials"),
        (Hangup(), "connection"),
        (StreamError("overloaded_error"), "overloaded"),
        (StreamError("rate_limit_error"), "rate-limit"),
        (StreamError("api_error"), "server-error"),
        (Cut(broken=True), "cut-stream"),
        (Cut(broken=False), "cut-stream"),
        (Raw(b""), "cut-stream"),
        (Raw(b"event: message_start\ndata: {oops\n\n"), "cut-stream"),
        (Raw(b"event: message_start\ndata: \xff\xfe\n\n"), "cut-stream"),
        (Raw(b"event: message_start\ndata: 5\n\n"), "cut-stream"),
        (Raw(b'event: message_start\ndata: {"type": "message_start"}\n\n'), "cut-stream"),
        (Raw(b"no gzip", headers={"content-encoding": "gzip"}), "cut-stream"),
    ],
    ids=str,
)
def test_every_fault_has_its_kind(spec, fault, kind):
    with serve(lambda asked: fault) as server, closing(server, spec) as asked:
        found = fault_of(asked)
        assert found.kind == kind
        assert found.data["spec"] == spec
        assert spec in str(found)
        assert found.retry_after_s is None
        assert found.data.get("status") == (fault.status if isinstance(fault, Refusal) else None)
        assert len(server.asked) == 1, "nothing may be retried here"
        assert found.may_be_billed == (not isinstance(fault, Refusal) or kind in {"server-error", "timeout"})
        assert pickle.loads(pickle.dumps(found)).kind == kind
        assert (found.kind in RETRIED) == (kind not in {"rejected", "credentials"})


def test_the_vendors_words_are_handed_on_in_one_line_of_bearable_length(spec):
    page = "<html>\n" + "bad gateway\n" * 1000
    with serve(lambda asked: Refusal(502, body=page)) as server, closing(server, spec) as asked:
        text = str(fault_of(asked))
        assert "bad gateway" in text
        assert "\n" not in text
        assert len(text) < 500
    with serve(lambda asked: Refusal(404, "no model gpt-zero")) as server, closing(server, spec) as asked:
        assert "404: no model gpt-zero" in str(fault_of(asked))


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"retry_after": "0.5"}, 0.5),
        ({"retry_after": "9", "retry_after_ms": "1500"}, 1.5),
        ({"retry_after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry_after": "-3"}, 0.0),
        ({"retry_after": "soon"}, None),
        ({"retry_after": "inf"}, None),
        ({"retry_after_ms": "nan"}, None),
    ],
    ids=str,
)
def test_how_long_to_wait_is_read_in_every_form(spec, headers, wanted):
    with serve(lambda asked: rate_limited(**headers)) as server, closing(server, spec) as asked:
        assert fault_of(asked).retry_after_s == wanted


def test_a_date_to_wait_for_becomes_seconds(spec):
    date = email.utils.formatdate(time.time() + 3600, usegmt=True)
    with serve(lambda asked: rate_limited(retry_after=date)) as server, closing(server, spec) as asked:
        wait_s = fault_of(asked).retry_after_s
        assert wait_s is not None
        assert 3000 < wait_s <= 3600


def test_a_model_that_is_overloaded_halfway_may_be_billed_and_one_that_refuses_is_not(spec):
    with serve(lambda asked: StreamError("overloaded_error")) as server, closing(server, spec) as asked:
        assert fault_of(asked).may_be_billed
    with serve(lambda asked: overloaded()) as server, closing(server, spec) as asked:
        assert not fault_of(asked).may_be_billed


def test_nobody_listens(spec):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        settings = Settings(openai_base_url=url, anthropic_base_url=url)
        with contextlib.closing(metered_provider(spec, settings, {})) as asked:
            found = fault_of(asked)
    assert found.kind == "connection"
    assert url in str(found)


# ------------------------------------------------------------------------------------------------ limits of time


@pytest.mark.parametrize("fault", [Hang(), Comments()], ids=["silence", "comments"])
def test_a_reply_that_never_comes_is_given_up(spec, fault):
    with serve(lambda asked: fault) as server, closing(server, spec, timeout_s=0.2) as asked:
        found = fault_of(asked)
        assert found.kind == "timeout"
        assert "llm_timeout_s" in found.hint


def test_closing_ends_what_is_in_flight_and_nothing_can_be_sent_after(spec):
    with serve(lambda asked: Hang()) as server, ThreadPoolExecutor(1) as pool:
        asked = provider(server, spec, timeout_s=600)
        pending = pool.submit(fault_of, asked)
        assert server.arrived.acquire(timeout=20)
        asked.close()
        assert pending.result(timeout=20).kind == "connection"
        assert fault_of(asked).kind == "connection"
        assert len(server.asked) == 1


def test_a_client_that_is_handed_in_stays_open(spec):
    from kernelwright.agents.llm._anthropic import AnthropicProvider
    from kernelwright.agents.llm._openai import OpenAIProvider

    vendor, _, model = spec.partition(":")
    make = {"openai": OpenAIProvider, "anthropic": AnthropicProvider}[vendor]
    with serve(lambda asked: Answer("{}")) as server, httpx2.Client() as client:
        url = getattr(server, f"{vendor}_base_url")
        asked = make(model, api_key=None, base_url=url, timeout_s=5, connect_timeout_s=5, http_client=client)
        assert asked.send(request()).text == "{}"
        asked.close()
        assert not client.is_closed


# ------------------------------------------------------------------------------------------------ replies


def test_text_is_announced_while_it_arrives(spec):
    heard: list[int] = []
    with serve(lambda asked: Answer("x" * 90, pieces=9)) as server, closing(server, spec) as asked:
        reply = asked.send(request(), on_text=heard.append)
    assert reply.text == "x" * 90
    assert heard == list(range(10, 100, 10))
    assert reply.seconds > 0
    assert reply.model == spec.partition(":")[2]


def test_what_the_listener_raises_is_no_fault_of_the_model(spec):
    def stop(characters: int) -> None:
        raise ValueError("enough")

    with serve(lambda asked: Answer("x" * 90)) as server, closing(server, spec) as asked:
        with pytest.raises(ValueError, match="enough"):
            asked.send(request(), on_text=stop)
        assert asked.send(request()).text == "x" * 90


@pytest.mark.parametrize("stop", ["complete", "length", "refused"])
@pytest.mark.parametrize(
    "text", ["", "no JSON at all", '{"code": 1', "```python\nprint()\n```", '{"code": "é\\u2028"}']
)
def test_text_and_stop_are_handed_on_as_they_are(spec, stop, text):
    if stop == "refused" and not text:
        text = "I will not."
    with serve(lambda asked: Answer(text, stop=stop)) as server, closing(server, spec) as asked:
        reply = asked.send(request())
    assert (reply.text, reply.stop) == (text, stop)


def test_usage_is_counted_alike_for_both_vendors(spec):
    usage = Tokens(input=1000, output=50, cached=600, written=300, reasoning=20)
    with serve(lambda asked: Answer("{}", usage)) as server, closing(server, spec) as asked:
        reply = asked.send(request())
        assert server.totals == {asked.model: Totals(1, 1000, 50)}
    assert reply.usage is not None
    assert reply.usage._asdict() == {
        "input_tokens": 1000,
        "output_tokens": 50,
        "cached_tokens": 600,
        "cache_write_tokens": 300,
        "reasoning_tokens": 20,
    }


def test_usage_that_nobody_says_is_unknown(spec):
    with serve(lambda asked: Answer("{}", usage=None)) as server, closing(server, spec) as asked:
        assert asked.send(request()).usage is None
        assert server.totals == {}


def test_many_requests_are_in_flight_at_once_and_none_gets_the_reply_of_another(spec):
    together = threading.Barrier(32)

    def script(asked: Asked) -> Answer:
        together.wait(timeout=30)
        return Answer(asked.messages[-1][1], Tokens(len(asked.text), 1))

    with serve(script) as server, closing(server, spec) as asked, ThreadPoolExecutor(32) as pool:
        texts = [f"question {number}" for number in range(64)]
        replies = list(pool.map(lambda text: asked.send(request(text)), texts))
        assert [reply.text for reply in replies] == texts
        assert len(server.asked) == 64
        assert server.statuses == {200: 64}
        billed = server.totals[asked.model]
        assert billed.replies == 64
        assert billed.input_tokens == sum(reply.usage.input_tokens for reply in replies if reply.usage)


# ------------------------------------------------------------------------------------------------ keys


def echo(asked: Asked) -> Refusal:
    return Refusal(401, f"you said {asked.headers['authorization']}", "authentication_error")


def echo_anywhere(asked: Asked) -> Refusal:
    return Refusal(400, body=f"<p>{asked.headers}</p>")


def echo_in_stream(asked: Asked) -> StreamError:
    return StreamError("api_error", f"{'long ' * 55}{asked.headers['authorization']}")


def echo_bare(asked: Asked) -> Refusal:
    return Refusal(403, f"the key {asked.headers['authorization'].split()[1]!r} has expired", "permission_error")


@pytest.mark.parametrize(
    "script", [echo, echo_bare, echo_anywhere, echo_in_stream, lambda asked: Hangup(), lambda asked: Cut()]
)
def test_the_key_is_sent_and_never_shown(spec, script, caplog):
    caplog.set_level(logging.DEBUG)
    with serve(script) as server, closing(server, spec) as asked:
        found = fault_of(asked)
        assert KEY in server.asked[0].headers["authorization"]
        shown = [str(found), repr(found), repr(found.data), repr(asked), found.hint]
    shown += traceback.format_exception(found)
    shown += [f"{record.getMessage()}{record.exc_text}" for record in caplog.records]
    assert found.__context__ is None
    assert found.__cause__ is None
    assert caplog.records
    assert not [text for text in shown if KEY[:8] in text]


def test_without_a_key_only_servers_that_are_not_the_vendors_are_asked(spec):
    name = f"{spec.partition(':')[0].upper()}_API_KEY"
    with pytest.raises(MissingToolError, match=name) as caught:
        metered_provider(spec, Settings(), {})
    assert caught.value.exit_code == 3
    metered_provider(spec, Settings(), KEYS).close()
    with serve(lambda asked: Answer("{}")) as server:
        with contextlib.closing(metered_provider(spec, settings_for(server), {})) as asked:
            assert asked.send(request()).text == "{}"
            assert asked.metered
            assert f"{asked.name}:{asked.model}" == spec
        assert vendors_own(settings_for(server)) == frozenset()
    assert vendors_own(Settings()) == {"openai", "anthropic"}


def test_keys_of_the_environment_are_not_sent_where_another_environment_is_given(spec, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    with serve(lambda asked: Answer("{}")) as server:
        with contextlib.closing(metered_provider(spec, settings_for(server), {})) as asked:
            asked.send(request())
        assert KEY not in str(server.asked[0].headers)


def test_a_spec_without_a_model_is_refused(spec):
    for bad in (spec.partition(":")[0], f"{spec.partition(':')[0]}:", "offline"):
        with pytest.raises(UsageError, match="names no model"):
            metered_provider(bad, Settings(), KEYS)


# ------------------------------------------------------------------------------------------------ what is asked


def test_prompts_and_schema_arrive(spec):
    with serve(lambda asked: Answer("{}")) as server, closing(server, spec) as asked:
        question = request("the question")
        asked.send(question)
        (seen,) = server.asked
    assert seen.vendor == spec.partition(":")[0]
    assert (seen.model, seen.system, seen.stream) == (asked.model, question.system, True)
    assert seen.messages == tuple(question.messages)
    assert seen.schema == question.schema
    assert seen.max_output_tokens == 1000


@pytest.mark.parametrize("name", ["model", "messages", "stream", "max_tokens"])
def test_parameters_that_are_the_providers_own_are_refused(spec, name):
    with serve(lambda asked: Answer("{}")) as server, closing(server, spec) as asked:
        with pytest.raises(UsageError, match=name):
            asked.send(request(**{name: 1}))
        assert not server.asked
