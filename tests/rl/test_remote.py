"""The client of a reward server: what it waits for, what it believes, and that nothing else reaches a trainer."""

from __future__ import annotations

import gc
import json
import pickle
import threading

import httpx2
import pytest
from rl_server import served

from kernelwright.errors import KernelwrightError, UsageError
from kernelwright.records import Candidate, Status
from kernelwright.rl import RemoteScorer
from kernelwright.rl._remote import RewardServerError
from kernelwright.rl._scoring import Scored

PLUS = "things/level1/plus_one"
URL = "http://127.0.0.1:9"


def sha(source):
    return Candidate(problem_id=PLUS, source=source, backend="cpp").sha256


def good(source="v1\n", **more):
    found = {"reward": 2.3, "status": "PASSED", "candidate": sha(source), "speedup": 2.0, "passed": True}
    return {**found, **more}


class Server:
    """Answers requests by a list of replies: a function of the job's name, or an error to raise."""

    def __init__(self, *replies):
        self.replies = list(replies)
        self.seen = []

    def __call__(self, request):
        self.seen.append((request.method, request.url.path, request.headers, request.read()))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return reply(self.name)

    @property
    def name(self):
        body = next(body for method, _, _, body in reversed(self.seen) if method == "POST")
        return json.loads(body)["job"]


def says(status=200, content=None, headers=None, **fields):
    """A reply, with the job's own name where it is JSON."""

    def made(name):
        body = content if content is not None else json.dumps({"job": name, "state": "done", **fields}).encode()
        return httpx2.Response(
            status, stream=httpx2.ByteStream(body), headers={"content-type": "application/json", **(headers or {})}
        )

    return made


@pytest.fixture
def remote(clock):
    def made(*replies, **more):
        server = Server(*replies)
        transport = httpx2.MockTransport(server)
        scorer = RemoteScorer(URL, transport=transport, clock=clock, sleep=clock.sleep, **more)
        return scorer, server

    return made


# ----------------------------------------------------------------------------------------------------- waiting


def test_scores_are_records_of_what_was_asked(remote, ask):
    scorer, server = remote(says(results=[good("v1\n"), good("v2\n", reward=None)]), token="secret-0123456789")
    found = scorer.score([ask("v1\n"), ask("v2\n")])
    assert [type(one) for one in found] == [Scored, Scored]
    assert [one.reward for one in found] == [2.3, None]
    method, path, headers, _ = server.seen[0]
    assert (method, path, headers["authorization"]) == ("POST", "/v1/score", "Bearer secret-0123456789")
    assert "secret" not in repr(scorer)


def test_nothing_is_asked_for_nothing(remote):
    scorer, server = remote(says())
    assert scorer.score([]) == []
    assert server.seen == []


def test_a_job_that_waits_is_asked_for_by_its_name(remote, ask):
    pending = says(202, state="waiting")
    scorer, server = remote(pending, says(202, state="running"), says(results=[good()]))
    assert scorer.score([ask()])[0].passed
    assert [(method, path) for method, path, _, _ in server.seen] == [
        ("POST", "/v1/score"),
        ("GET", f"/v1/jobs/{server.name}"),
        ("GET", f"/v1/jobs/{server.name}"),
    ]


def test_a_server_that_is_away_is_waited_for_and_asked_for_the_same_job(remote, ask, clock):
    away = [httpx2.ConnectError("refused"), httpx2.ReadTimeout("slow"), says(503), httpx2.RemoteProtocolError("cut")]
    scorer, server = remote(*away, says(results=[good()]))
    assert scorer.score([ask()])[0].reward == 2.3
    names = {json.loads(body)["job"] for _, _, _, body in server.seen}
    assert len(names) == 1
    assert clock.waited == [0.5, 1.0, 2.0, 4.0]


def test_a_server_without_a_place_says_when_to_come_again(remote, ask, clock):
    scorer, _ = remote(says(429, headers={"retry-after": "7"}), says(results=[good()]))
    scorer.score([ask()])
    assert clock.waited == [7.0]


def test_a_server_that_forgot_a_job_gets_it_again(remote, ask):
    scorer, server = remote(says(202, state="waiting"), says(404, b'{"detail": "x"}'), says(results=[good()]))
    assert scorer.score([ask()])[0].passed
    assert [method for method, _, _, _ in server.seen] == ["POST", "GET", "POST"]


def test_a_server_that_stays_away_is_an_error_that_says_how_to_start_it(remote, ask, clock):
    scorer, _ = remote(httpx2.ConnectError("refused"), wait_s=60)
    began = clock()
    with pytest.raises(RewardServerError, match=r"60 seconds \(ConnectError\).*kernelwright rl serve"):
        scorer.score([ask()])
    assert 60 <= clock() - began <= 95


def test_a_server_that_never_finishes_is_an_error_in_the_end(remote, ask, clock):
    def slow(name):
        clock.seconds += 20
        return says(202, state="running")(name)

    scorer, _ = remote(slow, patience_s=100)
    with pytest.raises(RewardServerError, match="not done within 100 seconds"):
        scorer.score([ask()])


def test_a_refusal_is_told_in_words_without_what_terminals_obey(remote, ask):
    said = json.dumps({"detail": "no problem named\x1b[2J x", "hint": "did you mean y"}).encode()
    scorer, _ = remote(says(422, said))
    with pytest.raises(UsageError, match=r"refuses this: no problem named \[2J x \(did you mean y\)"):
        scorer.score([ask()])
    scorer, _ = remote(says(401, b"{}"), token="secret-0123456789")
    with pytest.raises(RewardServerError, match="wants a token") as caught:
        scorer.score([ask()])
    assert "secret" not in str(caught.value)
    scorer, _ = remote(says(500, b'{"detail": "the sandbox cannot be set up"}'))
    with pytest.raises(RewardServerError, match="answers 500: the sandbox"):
        scorer.score([ask()])


def test_many_kernels_go_in_several_jobs(remote, ask):
    def answers(name):
        asked = json.loads(server.seen[-1][3])["requests"]
        return says(results=[good(one["source"]) for one in asked])(name)

    scorer, server = remote(answers)
    found = scorer.score([ask(f"v{number}\n") for number in range(300)])
    assert [one.candidate for one in found] == [sha(f"v{number}\n") for number in range(300)]
    assert len(server.seen) == 2


@pytest.mark.parametrize("url", ["", "127.0.0.1:8775", "file:///etc/passwd", "http://user:secret@host", "http://h?x=1"])
def test_what_is_no_address_is_said_at_once(url):
    with pytest.raises(UsageError, match="not the address"):
        RemoteScorer(url)


def test_a_token_that_cannot_be_sent_is_not_repeated():
    with pytest.raises(UsageError) as caught:
        RemoteScorer(URL, token="a secret\nwith lines 0123456789")
    assert "secret" not in str(caught.value)


def test_a_scorer_can_be_sent_to_another_process(ask):
    scorer = pickle.loads(pickle.dumps(RemoteScorer(URL, wait_s=5)))
    assert scorer.url == URL


# ---------------------------------------------------------------------------------------------------- poisoned


class Bomb:
    """What must never come to be."""

    made = 0

    def __reduce__(self):
        return Bomb, ()

    def __init__(self):
        type(self).made += 1


@pytest.fixture
def made_here():
    """What a test has made of what a reply may bring; what there was before stands aside."""
    gc.freeze()
    yield lambda: [one for one in gc.get_objects() if type(one) in (Bomb, Scored)]
    gc.unfreeze()


def replies():
    nested = b'{"job": ' + b"[" * 100_000
    yield "a pickle", says(content=pickle.dumps(Bomb()), headers={"content-type": "application/octet-stream"})
    yield "a pickle called JSON", says(content=pickle.dumps(Bomb()))
    yield "HTML", says(content=b"<html>sign in</html>", headers={"content-type": "text/html"})
    yield "empty", says(content=b"")
    yield "a list", says(content=b"[]")
    yield "too deep", says(content=nested)
    yield "huge", says(content=b'{"x": "' + b"x" * 2**20 + b'"}')
    yield "zipped", says(content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
    yield "missing", says()
    yield "too few", says(results=[])
    yield "too many", says(results=[good(), good()])
    yield "not a list", says(results=good())
    yield "extra", says(results=[good()], more=1)
    yield "extra in a score", says(results=[good(bonus=5.0)])
    yield "another state", says(results=[good()], state="failed")
    yield "another job", lambda name: says(content=json.dumps({"job": "f" * 32, "results": [good()]}).encode())(name)
    yield "another kernel", says(results=[good("v2\n")])
    yield "no candidate", says(results=[{"reward": 1.0, "status": "PASSED"}])
    yield "passed without its status", says(results=[good(status="REWARD_HACK")])
    yield "paid without a verdict", says(results=[good(status=None, passed=False)])
    yield "unknown status", says(results=[good(status="WONDERFUL")])
    for name, value in (("NaN", "NaN"), ("infinite", "Infinity"), ("huge number", "1e400"), ("beyond", "1e7")):
        text = json.dumps([good(reward=-7.5)]).replace("-7.5", value)
        yield (
            f"reward {name}",
            lambda job, text=text: says(content=f'{{"job": "{job}", "state": "done", "results": {text}}}'.encode())(
                job
            ),
        )
    for value in ("1.0", True, [1.0], {"x": 1}):
        yield f"reward {value!r}", says(results=[good(reward=value)])
    yield "long feedback", says(results=[good(feedback="x" * 20_001)])
    for target in ("file:///etc/passwd", "http://evil.example/", "//evil.example"):
        yield f"redirect to {target}", says(302, headers={"location": target})
    yield "204", says(204, content=b"")
    yield "a teapot", says(418, content=b"[1]")
    yield "pending nonsense", says(202, state="sleeping")


@pytest.mark.parametrize("reply", [reply for _, reply in replies()], ids=[name for name, _ in replies()])
def test_a_poisoned_reply_is_an_error_and_nothing_of_it_survives(remote, ask, reply, made_here):
    before = Bomb.made
    scorer, server = remote(reply)
    with pytest.raises(RewardServerError) as caught:
        scorer.score([ask()])
    error = caught.value
    assert isinstance(error, KernelwrightError)
    assert error.hint
    assert error.__cause__ is None
    assert error.data == {}
    assert len(server.seen) == 1, "it is not asked again"
    assert Bomb.made == before
    assert pickle.loads(pickle.dumps(error)).message == error.message
    del caught, error
    gc.collect()
    assert made_here() == []


# ------------------------------------------------------------------------------------- with a server that runs


def test_over_a_real_connection(settings, referee, ask):
    referee.statuses = {"wrong": Status.INCORRECT_NUMERICAL}
    with served(settings, referee) as server, RemoteScorer(server.url) as scorer:
        found = scorer.score([ask("v2\n"), ask("wrong\n"), ask("v2\n")])
    assert [one.reward for one in found] == pytest.approx([4.3, 0.0, 4.3])
    assert [one.again for one in found] == [False, False, True]
    assert found[1].status is Status.INCORRECT_NUMERICAL


def test_a_server_that_dies_and_comes_back_gives_the_one_result(settings, referee, ask, clock):
    """The job is in its queue when it dies; the same trainer asks the next server for it, under its name."""
    found = []
    again = threading.Event()
    with served(settings, referee) as first:
        scorer = RemoteScorer(first.url, sleep=lambda _: again.wait(20), wait_s=10**6)
        asking = threading.Thread(target=lambda: found.extend(scorer.score([ask("v1\n"), ask("v2\n")])))
        first.may_judge.clear()
        asking.start()
        while not first.service.jobs.waiting:
            again.wait(0.005)
    with served(settings, referee, port=first.port):  # what was waited for got the reply 503 from the first one
        again.set()
        asking.join(20)
        scorer.close()
    assert [one.reward for one in found] == pytest.approx([2.3, 4.3])
    assert [word for _, word, _ in referee.judged] == ["v1", "v2"]


def test_a_reply_that_is_lost_is_asked_for_again_and_nothing_judged_twice(settings, referee, ask):
    with served(settings, referee) as server:
        lost = [True]

        class Lossy(httpx2.HTTPTransport):
            def handle_request(self, request):
                reply = super().handle_request(request)
                if lost.pop() if lost else False:
                    reply.read()
                    raise httpx2.ReadError("the connection was lost")
                return reply

        scorer = RemoteScorer(server.url, transport=Lossy(), sleep=lambda _: None)
        (found,) = scorer.score([ask("v2\n")])
        scorer.close()
    assert (found.reward, found.again) == (pytest.approx(4.3), False)
    assert len(referee.judged) == 1
