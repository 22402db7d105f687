"""A model behind a server that others wrote: ``transformers serve`` with a tiny untrained model, made here."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from llm_asking import request

from kernelwright.agents.llm import metered_provider
from kernelwright.config import Settings

pytestmark = pytest.mark.serve
START_S = 120.0


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The server's address and the model's name; the model writes bytes at random."""
    from kernelwright.rl._tiny import byte_model

    folder: Path = tmp_path_factory.mktemp("served") / "tiny"
    model, tokenizer = byte_model()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    program = [str(Path(sys.executable).with_name("transformers")), "serve", str(folder), "--device", "cpu"]
    address = f"http://127.0.0.1:{port}"
    with (folder.parent / "log").open("w+") as log:
        server = subprocess.Popen([*program, "--port", str(port)], env=environment, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + START_S
            while not _answers(address):
                assert server.poll() is None, (folder.parent / "log").read_text()[-2000:]
                assert time.monotonic() < deadline, "the server does not come up"
                time.sleep(0.5)
            yield address, str(folder)
        finally:
            server.terminate()
            server.wait(30)


def _answers(address: str) -> bool:
    try:
        return httpx2.get(f"{address}/health", timeout=2.0).status_code == 200
    except httpx2.HTTPError:
        return False


@pytest.fixture
def asked(served):
    """A provider that asks the server; it needs no key."""
    address, model = served
    settings = Settings(openai_base_url=f"{address}/v1", openai_timeout_s=60)
    provider = metered_provider(f"openai:{model}", settings, {})
    yield provider
    provider.close()


def test_a_reply_comes_with_what_it_took(asked):
    reply = asked.send(replace(request(), max_output_tokens=40))
    assert 0 < reply.usage.output_tokens <= 40
    assert reply.usage.input_tokens > 10
    assert reply.text or reply.stop


def test_replies_end_where_they_may_be_no_longer(asked):
    short, long = (asked.send(replace(request(), max_output_tokens=count)).usage.output_tokens for count in (5, 50))
    assert short <= 5 < long <= 50
