"""The client of one model in one run: it takes a reply from the log if there is one, else asks within the budget."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

from kernelwright.agents.llm._budget import Budget, Worst
from kernelwright.agents.llm._faults import RETRIED, ModelFault, Stopped
from kernelwright.agents.llm._types import Provider, Reply, Request
from kernelwright.records import LLMCall, sha256_text

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kernelwright.agents.llm._prices import PriceTable
    from kernelwright.store import Store

# Vendors add tokens of their own for each turn of a prompt, and a schema counts as text.
_FRAME_TOKENS = 64
_FRAME_TOKENS_A_TURN = 16


class Retries(NamedTuple):
    """The most tries of a request, and the waits between them if the provider does not say how long to wait."""

    tries: int = 6
    first_wait_s: float = 2.0
    longest_wait_s: float = 120.0
    longest_asked_s: float = 900.0  # longest wait that a provider may ask for; more is a fault


class Answer(NamedTuple):
    """A reply with its id in the store. ``reused``: it came from the log, without a request.

    ``cost_usd`` is its cost when it was requested; None if unknown.
    """

    reply: Reply
    call_id: str
    reused: bool
    cost_usd: float | None = None


class ModelClient:
    """The client of one model in one run. Safe to use from several threads.

    Args:
        provider: answers the requests.
        store: keeps replies and finds earlier ones.
        budget: the run's budget.
        prices: the prices of tokens.
        slots: limits the number of requests at once.
        wait: waits for some seconds; returns early with the reason if there is a reason to stop.
        fresh: reuse only replies of this run, so that a new run samples anew.
        note: called with facts about a reply for readers of the run.
    """

    def __init__(
        self,
        provider: Provider,
        store: Store,
        run_id: str,
        budget: Budget,
        prices: PriceTable,
        *,
        wait: Callable[[float], str],
        slots: AbstractContextManager[object] | None = None,
        retries: Retries | None = None,
        fresh: bool = False,
        note: Callable[[str, Mapping[str, object]], object] = lambda kind, data: None,
    ) -> None:
        self.provider = provider
        self._store = store
        self._run_id = run_id
        self._budget = budget
        self._prices = prices
        self._wait = wait
        self._slots = slots or nullcontext()
        self._retries = retries or Retries()
        self._fresh = fresh
        self._note = note
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    @property
    def spec(self) -> str:
        """The model as the command line names it."""
        return f"{self.provider.name}:{self.provider.model}".rstrip(":")

    def ask(self, request: Request, *, on_text: Callable[[int], None] = lambda characters: None) -> Answer:
        """The reply to a request. The store records that the run used it at the request's place.

        Raises:
            ModelFault: no reply after all retries.
            AwaitingReply: the reply is still to be written.
            BudgetReached: the budget does not cover the request.
            Stopped: the run must stop; the request was not sent.
        """
        key = request.key(self.provider.name, self.provider.model)
        if self._fresh:
            key = sha256_text(f"{key} {self._run_id}")
        with self._locks[key]:
            answer = self._logged(key) or self._asked(request, key, on_text)
        self._store.record_use(
            self._run_id, answer.call_id, **request.place._asdict(), prompt=request.prompt, reused=answer.reused
        )
        if answer.reply.recorded_prompt not in ("", request.prompt_sha256):
            self._note("prompt-differs", {**request.place._asdict(), "recorded": answer.reply.recorded_prompt})
        return answer

    def _logged(self, key: str) -> Answer | None:
        found = self._store.find_reply(key)
        if found is None:
            return None
        reply = Reply(found.text, found.call.stop, None, 0.0, found.call.model)
        return Answer(reply, found.id, True, found.call.cost_usd)

    def _asked(self, request: Request, key: str, on_text: Callable[[int], None]) -> Answer:
        if not self.provider.metered:
            reply = self.provider.send(request, on_text=on_text)
            call_id = self._store.keep_reply(
                self._call(request, key, reply),
                prompt=request.prompt,
                reply=reply.text,
                run_id=self._run_id,
                step=request.place.step,
            )
            return Answer(reply, call_id, False)
        for number in range(1, self._retries.tries + 1):
            try:
                return self._try(request, key, number, on_text)
            except ModelFault as fault:
                if fault.kind not in RETRIED or number == self._retries.tries:
                    raise
                self._pause(fault, number)
        raise AssertionError("unreachable")

    def _try(self, request: Request, key: str, number: int, on_text: Callable[[int], None]) -> Answer:
        """Reserve, send and settle one request. A reservation is released only if the request is surely unbilled."""
        with self._slots:
            reserved = self._budget.reserve(
                request,
                key=key,
                provider=self.provider.name,
                model=self.provider.model,
                try_number=number,
                worst=self.worst(request),
            )
            outcome, billed = "interrupted", True
            try:
                reply = self.provider.send(request, on_text=on_text)
            except ModelFault as fault:
                outcome, billed = fault.kind, fault.may_be_billed
                raise
            else:
                outcome = ""
                call = self._call(request, key, reply)
                call_id = self._budget.settle(reserved, call, request, reply.text)
                return Answer(reply, call_id, False, call.cost_usd)
            finally:
                if outcome:
                    (self._budget.book if billed else self._budget.release)(reserved, outcome)

    def _pause(self, fault: ModelFault, number: int) -> None:
        asked = fault.retry_after_s
        if asked is not None and asked > self._retries.longest_asked_s:
            raise fault
        wait = min(self._retries.first_wait_s * 2 ** (number - 1), self._retries.longest_wait_s)
        # Spread the retries, but never retry sooner than the provider asked.
        seconds = asked + random.uniform(0, 1) if asked is not None else random.uniform(wait / 2, wait)
        if reason := self._wait(seconds):
            raise Stopped(reason)

    def worst(self, request: Request) -> Worst:
        """The most that a request can use, with one token for each byte, which no tokenizer exceeds."""
        turns = len(request.messages) + 1
        tokens = len(request.prompt.encode()) + len(str(request.schema).encode())
        tokens += _FRAME_TOKENS + _FRAME_TOKENS_A_TURN * turns
        cost_usd = self._prices.worst_usd(self.spec, tokens, request.max_output_tokens)
        return Worst(tokens + request.max_output_tokens, cost_usd)

    def _call(self, request: Request, key: str, reply: Reply) -> LLMCall:
        usage, place = reply.usage, request.place
        cost = 0.0 if self.provider.name == "replay" else None
        if usage is not None and self.provider.metered:
            cost = self._prices.cost_usd(self.spec, usage)
        return LLMCall(
            role=place.role,
            provider=self.provider.name,
            model=self.provider.model,
            prompt_sha256=request.prompt_sha256,
            reply_sha256=sha256_text(reply.text),
            input_tokens=None if usage is None else usage.input_tokens,
            output_tokens=None if usage is None else usage.output_tokens,
            cached_tokens=None if usage is None else usage.cached_tokens,
            cache_write_tokens=None if usage is None else usage.cache_write_tokens,
            reasoning_tokens=None if usage is None else usage.reasoning_tokens,
            cost_usd=cost,
            seconds=reply.seconds,
            stop=reply.stop,
            key=key,
            problem=place.problem,
            sample=place.sample,
            attempt=place.attempt,
        )
