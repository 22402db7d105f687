"""The loopback server itself, as the vendors' own SDKs and plain HTTP see it."""

from __future__ import annotations

import json
import threading

import anthropic
import httpx2
import openai
import pytest
from llm_server import Answer, Hang, Tokens, Totals, serve

TURNS = [{"role": "user", "content": "hi"}]


def test_replies_that_are_not_streamed():
    with serve(lambda asked: Answer("yes", Tokens(50, 7, cached=10, written=5, reasoning=2))) as server:
        with openai.OpenAI(api_key="k", base_url=server.openai_base_url) as client:
            chat = client.chat.completions.create(model="a", messages=TURNS)
        with anthropic.Anthropic(api_key="k", base_url=server.anthropic_base_url) as client:
            message = client.messages.create(model="b", messages=TURNS, max_tokens=9, system="be kind")
        assert server.totals == {"a": Totals(1, 50, 7), "b": Totals(1, 50, 7)}
        assert [(seen.number, seen.system, seen.stream) for seen in server.asked] == [
            (0, "", False),
            (1, "be kind", False),
        ]
    assert chat.choices[0].message.content == "yes"
    assert chat.usage is not None
    assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (50, 7)
    assert message.content[0].text == "yes"
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens, message.usage.output_tokens) == (
        35,
        10,
        7,
    )


@pytest.mark.parametrize(("stop", "reason"), [("length", "max_tokens"), ("refused", "refusal")])
def test_why_replies_stopped(stop, reason):
    with serve(lambda asked: Answer("no", stop=stop)) as server:
        with anthropic.Anthropic(api_key="k", base_url=server.anthropic_base_url) as client:
            with client.messages.stream(model="b", messages=TURNS, max_tokens=9) as stream:
                assert stream.get_final_message().stop_reason == reason
        with openai.OpenAI(api_key="k", base_url=server.openai_base_url) as client:
            answer = client.chat.completions.create(model="a", messages=TURNS).choices[0]
    assert (answer.message.refusal == "no") is (stop == "refused")
    assert (answer.finish_reason == "length") is (stop == "length")


@pytest.mark.parametrize(
    ("path", "headers", "body", "status"),
    [
        ("/v1/messages", {}, {}, 401),
        ("/v1/responses", {"authorization": "Bearer k"}, {}, 404),
        ("/v1/messages", {"authorization": "Bearer k"}, {"temperature": 1}, 400),
        ("/v1/chat/completions", {"authorization": "Bearer k"}, {"temperature": 1}, 200),
    ],
)
def test_what_the_vendors_refuse(path, headers, body, status):
    with serve(lambda asked: Answer("yes")) as server:
        response = httpx2.post(server.origin + path, headers=headers, content=json.dumps({"model": "a", **body}))
        assert response.status_code == status
        assert server.statuses == {status: 1}
        assert ("error" in response.json()) is (status != 200)


def test_what_hangs_is_let_go():
    failed: list[Exception] = []

    def ask(server) -> None:
        try:
            httpx2.post(
                server.openai_base_url + "/chat/completions", headers={"authorization": "k"}, json={"model": "a"}
            )
        except httpx2.RemoteProtocolError as error:
            failed.append(error)

    with serve(lambda asked: Hang()) as server:
        thread = threading.Thread(target=ask, args=(server,))
        thread.start()
        assert server.arrived.acquire(timeout=20)
        server.let_go()
        thread.join(timeout=20)
        assert len(failed) == 1
        assert server.totals == {}
