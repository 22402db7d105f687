"""Asking a model: the log, the budget, retries; and what a killed process leaves behind."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from agents_models import FakePrices, FakeProvider, fault
from campaign_fakes import make_problem

from kernelwright.agents.llm import (
    AwaitingReply,
    Budget,
    Limits,
    Message,
    ModelClient,
    ModelFault,
    Place,
    Reply,
    Request,
    Stopped,
    Usage,
)
from kernelwright.errors import BudgetReached
from kernelwright.records import RunConfig
from kernelwright.store import Store

PROBLEM = make_problem()


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture
def run_id(store):
    return new_run(store)


def new_run(store) -> str:
    return store.create_run(RunConfig(problems=(PROBLEM.id,)), [PROBLEM])


def request(text: str = "write a kernel", *, step: int = 0, sample: int = 0, most: int = 100, **more) -> Request:
    return Request(
        system="you write kernels",
        messages=(Message("user", text),),
        schema_name="Reply",
        schema={"type": "object"},
        place=Place(PROBLEM.id, step, "coder", sample),
        max_output_tokens=most,
        **more,
    )


def client_of(store, run_id, provider, *, limits=None, wait=None, **more) -> ModelClient:
    budget = Budget(store, run_id, limits or Limits())
    waits = wait or (lambda seconds: "")
    return ModelClient(provider, store, run_id, budget, FakePrices(), wait=waits, **more)


def states(store, run_id) -> list[tuple[str, str]]:
    rows = store.query("SELECT state, outcome FROM llm_requests WHERE run_id = ? ORDER BY id", [run_id])
    return [(row["state"], row["outcome"]) for row in rows]


def test_a_reply_is_kept_with_its_texts_and_what_it_cost(store, run_id):
    provider = FakeProvider(lambda request, number: Reply('{"a": 1}', "complete", Usage(900, 100, 40, 5, 30), 2.5))
    answer = client_of(store, run_id, provider).ask(request())
    assert answer.reply.text == '{"a": 1}'
    kept = store.reply(answer.call_id)
    assert kept.text == '{"a": 1}'
    assert store.get_text(kept.call.prompt_sha256) == request().prompt
    assert (kept.call.input_tokens, kept.call.output_tokens, kept.call.cached_tokens) == (900, 100, 40)
    assert (kept.call.cache_write_tokens, kept.call.reasoning_tokens, kept.call.seconds) == (5, 30, 2.5)
    assert kept.call.cost_usd == 1.0
    assert store.spending(run_id).cost_usd == 1.0
    assert store.check().ok


def test_the_same_question_is_never_paid_twice(store, run_id):
    provider = FakeProvider()
    first = client_of(store, run_id, provider).ask(request())
    again = client_of(store, run_id, provider).ask(request())
    other_run = new_run(store)
    elsewhere = client_of(store, other_run, provider).ask(request())
    assert [first.reused, again.reused, elsewhere.reused] == [False, True, True]
    assert len(provider.requests) == 1
    assert store.run_costs(other_run).calls == 0
    assert store.run_costs(other_run).reused_replies == 1
    assert [use.call_id for use in store.uses(other_run)] == [first.call_id]


@pytest.mark.parametrize(
    "other",
    [
        request("write another kernel"),
        request(sample=1),
        request(parameters={"temperature": 0.3}),
        request(most=101),
    ],
    ids=["prompt", "sample", "parameters", "length"],
)
def test_another_question_is_asked(store, run_id, other):
    provider = FakeProvider()
    client = client_of(store, run_id, provider)
    client.ask(request())
    assert not client.ask(other).reused
    assert len(provider.requests) == 2


def test_a_fresh_run_asks_anew_and_finds_its_own_replies(store, run_id):
    provider = FakeProvider()
    client_of(store, run_id, provider).ask(request())
    fresh = new_run(store)
    assert not client_of(store, fresh, provider, fresh=True).ask(request()).reused
    assert client_of(store, fresh, provider, fresh=True).ask(request()).reused
    assert len(provider.requests) == 2


def test_one_question_asked_by_many_threads_is_sent_once(store, run_id):
    provider = FakeProvider()
    client = client_of(store, run_id, provider)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: client.ask(request()), range(16)))
    assert len(provider.requests) == 1
    assert len({answer.call_id for answer in answers}) == 1


# ------------------------------------------------------------------------------------------------- faults


def test_a_request_is_sent_again_after_as_long_as_the_provider_asks(store, run_id):
    waited = []
    answers = [fault("rate-limit", retry_after_s=7.0), fault("overloaded"), "{}"]
    provider = FakeProvider(lambda request, number: answers[number])
    client_of(store, run_id, provider, wait=lambda seconds: waited.append(seconds) or "").ask(request())
    assert states(store, run_id) == [
        ("released", "rate-limit"),
        ("released", "overloaded"),
        ("settled", "reply"),
    ]
    assert 7.0 <= waited[0] <= 8.0
    assert 0 < waited[1] < 120


@pytest.mark.parametrize("kind", ["server-error", "timeout", "connection", "cut-stream"])
def test_what_may_have_been_worked_on_is_booked_as_it_was_reserved(store, run_id, kind):
    provider = FakeProvider(lambda request, number: fault(kind) if number == 0 else "{}")
    client = client_of(store, run_id, provider)
    client.ask(request())
    assert states(store, run_id) == [("booked", kind), ("settled", "reply")]
    worst = client.worst(request())
    spent = store.spending(run_id)
    assert spent.tokens == worst.tokens + 150
    assert spent.cost_usd == pytest.approx(worst.cost_usd + 0.15)
    costs = store.run_costs(run_id)
    assert (costs.calls, costs.booked_requests, costs.booked_tokens) == (1, 1, worst.tokens)
    assert costs.cost_usd == pytest.approx(spent.cost_usd)


@pytest.mark.parametrize("kind", ["rejected", "credentials"])
def test_what_is_refused_as_such_is_not_sent_again(store, run_id, kind):
    provider = FakeProvider(lambda request, number: fault(kind))
    with pytest.raises(ModelFault) as raised:
        client_of(store, run_id, provider).ask(request())
    assert raised.value.kind == kind
    assert states(store, run_id) == [("released", kind)]


def test_tries_come_to_an_end(store, run_id):
    provider = FakeProvider(lambda request, number: fault("server-error"))
    with pytest.raises(ModelFault):
        client_of(store, run_id, provider).ask(request())
    assert states(store, run_id) == [("booked", "server-error")] * 6


def test_a_stop_ends_the_wait_for_the_next_try(store, run_id):
    provider = FakeProvider(lambda request, number: fault("rate-limit"))
    with pytest.raises(Stopped, match="interrupted"):
        client_of(store, run_id, provider, wait=lambda seconds: "interrupted").ask(request())
    assert len(provider.requests) == 1


def test_a_provider_that_asks_for_hours_is_a_fault(store, run_id):
    provider = FakeProvider(lambda request, number: fault("rate-limit", retry_after_s=7200.0))
    with pytest.raises(ModelFault):
        client_of(store, run_id, provider).ask(request())
    assert len(provider.requests) == 1


def test_a_reply_without_usage_is_kept_and_booked(store, run_id):
    provider = FakeProvider(lambda request, number: Reply("{}", "complete", None, 1.0))
    client = client_of(store, run_id, provider)
    answer = client.ask(request())
    assert states(store, run_id) == [("booked", "reply without usage")]
    assert store.spending(run_id).tokens == client.worst(request()).tokens
    assert store.reply(answer.call_id).call.cost_usd is None
    costs = store.run_costs(run_id)
    assert costs.cost_usd == pytest.approx(client.worst(request()).cost_usd)
    assert client.ask(request()).reused


def test_an_error_of_our_own_is_booked_and_not_swallowed(store, run_id):
    provider = FakeProvider(lambda request, number: ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        client_of(store, run_id, provider).ask(request())
    assert states(store, run_id) == [("booked", "interrupted")]


# ------------------------------------------------------------------------------------------------- budget


def test_no_request_is_sent_that_could_exceed_the_budget(store, run_id):
    provider = FakeProvider()
    most = client_of(store, run_id, provider).worst(request()).tokens
    client = client_of(store, run_id, provider, limits=Limits(tokens=most + 149))
    client.ask(request())  # uses 150 of them
    with pytest.raises(BudgetReached, match="tokens"):
        client.ask(request("write a kernet"))
    assert len(provider.requests) == 1


def test_the_budget_in_dollars_is_the_same(store, run_id):
    provider = FakeProvider()
    client = client_of(store, run_id, provider, limits=Limits(cost_usd=0.2))
    with pytest.raises(BudgetReached, match=r"\$0\.20"):
        client.ask(request())
    assert not provider.requests


def test_a_logged_reply_needs_no_budget(store, run_id):
    provider = FakeProvider()
    client_of(store, run_id, provider).ask(request())
    assert client_of(store, run_id, provider, limits=Limits(tokens=1)).ask(request()).reused


def test_with_many_calls_in_flight_the_budget_is_never_exceeded(store, run_id):
    """Each uses as much as was reserved for it; so the budget has room for exactly as many as fit into it."""
    sizes = {}

    def use_all(asked: Request, number: int) -> Reply:
        all_are_in_flight.wait(timeout=30)
        worst = sizes[asked.messages[0].text]
        return Reply("{}", "complete", Usage(worst - 100, 100), 0.0)

    provider = FakeProvider(use_all)
    requests = [request(f"question {number}") for number in range(64)]
    probe = client_of(store, run_id, provider)
    sizes |= {asked.messages[0].text: probe.worst(asked).tokens for asked in requests}
    most = max(sizes.values())
    fitting = 32
    all_are_in_flight = threading.Barrier(fitting)
    client = client_of(store, run_id, provider, limits=Limits(tokens=fitting * most))

    def asked(one: Request) -> bool:
        try:
            client.ask(one)
        except BudgetReached:
            return False
        return True

    with ThreadPoolExecutor(64) as threads:
        answered = sum(threads.map(asked, requests))
    assert answered == fitting
    assert store.spending(run_id).tokens <= fitting * most
    assert provider.tokens == store.spending(run_id).tokens


def test_a_request_waits_where_those_in_flight_may_leave_room(store, run_id):
    """The first takes the whole budget until it is settled with little; then the second fits."""
    first_is_sent, second_waits = threading.Event(), threading.Event()

    def answer(asked: Request, number: int) -> Reply:
        if number == 0:
            first_is_sent.set()
            assert second_waits.wait(timeout=30)
        return Reply("{}", "complete", Usage(10, 5), 0.0)

    provider = FakeProvider(answer)
    most = client_of(store, run_id, provider).worst(request()).tokens
    budget = Budget(store, run_id, Limits(tokens=most + 20), lambda: second_waits.set() or "")
    client = ModelClient(provider, store, run_id, budget, FakePrices(), wait=lambda seconds: "")
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(client.ask, request())
        assert first_is_sent.wait(timeout=30)
        second = threads.submit(client.ask, request("write a kernet"))
        assert not first.result(timeout=30).reused
        assert not second.result(timeout=30).reused
    assert store.spending(run_id).tokens == 30


def test_what_a_killed_process_left_open_is_booked_and_never_shrinks(store, run_id):
    provider = FakeProvider()
    client = client_of(store, run_id, provider)
    client.ask(request())
    lost = request("lost with the process")
    key = lost.key("fake", "model")
    worst = client.worst(lost)
    budget = Budget(store, run_id, Limits())
    budget.reserve(lost, key=key, provider="fake", model="model", try_number=1, worst=worst)
    before = store.spending(run_id)
    assert (before.open, before.tokens) == (1, 150)
    resumed = client_of(store, run_id, provider)
    assert states(store, run_id)[-1] == ("booked", "lost")
    assert store.spending(run_id).tokens == 150 + worst.tokens
    assert resumed.ask(request()).reused
    assert not resumed.ask(lost).reused


def test_what_was_closed_stays_as_it_is(store, run_id):
    client_of(store, run_id, FakeProvider()).ask(request())
    (row,) = store.query("SELECT id FROM llm_requests")
    with pytest.raises(Exception, match="stays as it is"):
        store.book_request(row["id"], "late")


def test_those_who_bill_nobody_have_no_reservation(store, run_id):
    provider = FakeProvider(metered=False)
    client_of(store, run_id, provider, limits=Limits(cost_usd=0.0)).ask(request())
    assert states(store, run_id) == []
    assert store.run_costs(run_id).calls == 1


def test_a_reply_that_is_awaited_leaves_no_trace(store, run_id):
    provider = FakeProvider(lambda request, number: AwaitingReply("soon", path="here"), metered=False)
    with pytest.raises(AwaitingReply):
        client_of(store, run_id, provider).ask(request())
    assert not store.uses(run_id)
