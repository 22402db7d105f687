"""A language model in memory, for tests of what stands around one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from kernelwright.agents.llm import ModelFault, Reply, Request, Usage


class FakePrices:
    """A dollar for a thousand tokens, whatever they are."""

    def cost_usd(self, spec: str, usage: Usage) -> float | None:
        return (usage.input_tokens + usage.output_tokens) / 1000

    def worst_usd(self, spec: str, input_tokens: int, output_tokens: int) -> float | None:
        return (input_tokens + output_tokens) / 1000


class FakeProvider:
    """Answers by ``script``: a text, a Reply, or a fault to raise; it is told the request and how many came before."""

    name = "fake"
    model = "model"

    def __init__(self, script: Callable[[Request, int], Any] = lambda request, number: "{}", *, metered: bool = True):
        self.metered = metered
        self.requests: list[Request] = []
        self.tokens = 0  # of what was answered with its usage
        self._script = script
        self._lock = threading.Lock()

    def send(self, request: Request, *, on_text: Callable[[int], None] = lambda characters: None) -> Reply:
        with self._lock:
            self.requests.append(request)
            number = len(self.requests) - 1
        answer = self._script(request, number)
        if isinstance(answer, BaseException):
            raise answer
        if not isinstance(answer, Reply):
            text = answer if isinstance(answer, str) else json.dumps(answer)
            answer = Reply(text, "complete", Usage(100, 50), 0.1, "model")
        if answer.usage is not None:
            with self._lock:
                self.tokens += answer.usage.input_tokens + answer.usage.output_tokens
        return answer

    def close(self) -> None:
        pass


def fault(kind: str, **data: Any) -> ModelFault:
    return ModelFault(f"a fault: {kind}", kind=kind, **data)
