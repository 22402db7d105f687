"""The reward server over HTTP: what it takes, in whose turn, once each; what it refuses. Its referee does nothing."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from types import SimpleNamespace

import httpx2
import pytest
from click.testing import CliRunner
from rl_server import served

from kernelwright.errors import UsageError
from kernelwright.rl import RewardOptions, serve_rewards
from kernelwright.rl._jobs import Answer, Job, JobQueue, NameTaken, QueueFull
from kernelwright.rl._serve import read_tokens
from kernelwright.store import Store

PLUS, TIMES = "things/level1/plus_one", "things/level1/times_two"
ADA, BOB = "ada-secret-0123456789", "bob-secret-0123456789"
KERNEL = "class ModelNew:\n    pass\n"


@pytest.fixture
def server(settings, referee):
    with served(settings, referee) as made:
        yield made


def call(server, method, path, body=None, *, token=None, client=None, **headers):
    given = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if token:
        given["authorization"] = f"Bearer {token}"
    if client:
        given["x-kernelwright-client"] = client
    content = body if isinstance(body, bytes | str) or body is None else json.dumps(body)
    return httpx2.request(method, server.url + path, content=content, headers=given, trust_env=False, timeout=5)


def scores(*sources, job="job-0001", wait_s=10, problem=PLUS):
    return {"job": job, "requests": [{"problem": problem, "source": source} for source in sources], "wait_s": wait_s}


def until(is_so):
    """Wait for what another thread is about to do."""
    end = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < end
        threading.Event().wait(0.005)


# ------------------------------------------------------------------------------------------------------ scores


def test_scores_come_with_the_reply_where_it_may_wait(server):
    reply = call(server, "POST", "/v1/score", scores("v1\n", "v2\n"))
    assert reply.status_code == 200
    found = reply.json()
    assert (found["job"], found["state"]) == ("job-0001", "done")
    assert [one["reward"] for one in found["results"]] == pytest.approx([2.3, 4.3])


def test_a_job_can_be_asked_for_later(server):
    server.may_judge.clear()
    reply = call(server, "POST", "/v1/score", scores("v1\n", wait_s=0))
    assert (reply.status_code, reply.json()) == (202, {"job": "job-0001", "state": "waiting"})
    assert call(server, "GET", "/health").json() == {"status": "ok", "waiting": 1, "capacity": 8, "judging": None}
    server.may_judge.set()
    reply = call(server, "GET", "/v1/jobs/job-0001?wait_s=10")
    assert (reply.status_code, reply.json()["state"]) == (200, "done")


def test_a_job_asked_for_again_is_the_same_job(server, referee):
    first = call(server, "POST", "/v1/score", scores("v1\n"))
    second = call(server, "POST", "/v1/score", scores("v1\n", wait_s=5))
    assert first.json() == second.json()
    assert len(referee.judged) == 1
    other = call(server, "POST", "/v1/score", scores("v2\n"))
    assert (other.status_code, len(referee.judged)) == (409, 1)


def test_an_unknown_job_is_said(server):
    assert call(server, "GET", "/v1/jobs/job-9999").status_code == 404
    assert call(server, "GET", "/v1/jobs/%2e%2e%2fetc").status_code == 404


def test_jobs_belong_to_their_client(server):
    call(server, "POST", "/v1/score", scores("v1\n"), client="ada")
    assert call(server, "GET", "/v1/jobs/job-0001", client="bob").status_code == 404
    assert call(server, "GET", "/v1/jobs/job-0001", client="ada").status_code == 200


def test_a_full_queue_says_when_to_come_again(settings, referee):
    with served(settings, referee, capacity=4) as server:
        server.may_judge.clear()
        for number in range(2):
            assert (
                call(server, "POST", "/v1/score", scores("v1\n", job=f"job-100{number}", wait_s=0)).status_code == 202
            )
        reply = call(server, "POST", "/v1/score", scores("v1\n", job="job-1002", wait_s=0))
        assert reply.status_code == 429
        assert int(reply.headers["retry-after"]) >= 1
        other = call(server, "POST", "/v1/score", scores("v1\n", wait_s=0), client="somebody-else")
        assert other.status_code == 202, "one client alone does not fill the queue"


def test_clients_take_turns():
    queue = JobQueue(20)
    for client, count in (("greedy", 5), ("modest", 2), ("late", 1)):
        for number in range(count):
            queue.submit(Job(client, f"{number}", "d", lambda scorer: Answer(200, b"")))
    order = [job.client for job in iter(lambda: queue.take(0), None)]
    assert order == ["greedy", "modest", "late", "greedy", "modest", "greedy", "greedy", "greedy"]


def test_old_answers_are_forgotten_and_waiting_jobs_are_not(monkeypatch):
    monkeypatch.setattr("kernelwright.rl._jobs.MOST_KEPT", 2)
    queue = JobQueue(20)
    for number in range(4):
        queue.submit(Job("a", f"{number}", "d", lambda scorer: Answer(200, b"12345")))
        queue.finish(queue.take(0), Answer(200, b"12345"), 1.0)
    queue.submit(Job("a", "waiting", "d", lambda scorer: Answer(200, b"")))
    assert [queue.find("a", f"{number}") is None for number in range(4)] == [True, True, False, False]
    assert queue.find("a", "waiting").state == "waiting"


def test_a_closed_queue_answers_everybody_and_takes_nothing():
    queue = JobQueue(4)
    job = queue.submit(Job("a", "one", "d", lambda scorer: Answer(200, b"")))
    queue.close(Answer(503, b"{}"))
    assert job.done.result(0).status == 503
    with pytest.raises(QueueFull):
        queue.submit(Job("a", "two", "d", lambda scorer: Answer(200, b"")))
    with pytest.raises(NameTaken):
        queue.submit(Job("a", "one", "other", lambda scorer: Answer(200, b"")))


def test_a_job_that_breaks_is_answered_and_the_next_one_is_judged(server, referee, caplog):
    referee.statuses = None  # a bug
    with caplog.at_level(logging.CRITICAL):
        reply = call(server, "POST", "/v1/score", scores("v1\n"))
    assert (reply.status_code, reply.json()["detail"][:15]) == (500, "something broke")
    referee.statuses = {}
    assert call(server, "POST", "/v1/score", scores("v1\n", job="job-0002")).status_code == 200


# ----------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\x80\x04N.",  # a pickle
        b'{"job": "job-0001", "requests": []}',
        b'{"job": "x", "requests": [{"problem": "p", "source": "s"}]}',
        b'{"job": "job-0001", "requests": [{"problem": "p", "source": 7}]}',
        b'{"job": "job-0001", "requests": [{"problem": "p", "source": "s", "knobs": {}}]}',
        b'{"job": "job-0001", "requests": [{"problem": "p", "source": "s", "backend": "rust"}]}',
        b'{"job": "job-0001", "requests": [{"problem": "p", "source": "s"}], "wait_s": NaN}',
        b'{"job": "job-0001", "requests": [{"problem": "p", "source": "s"}], "wait_s": 1e9}',
        b'{"job": "job-0001", "requests": [{"problem": "p", "source": "\\ud800"}]}',
        json.dumps(scores(*["v1\n"] * 257)).encode(),
        b"[" * 100_000,
    ],
    ids=range(13),
)
def test_a_body_that_is_no_job_is_refused(server, referee, body):
    reply = call(server, "POST", "/v1/score", body)
    assert reply.status_code == 422
    assert set(reply.json()) == {"detail", "hint"}
    assert referee.judged == []


def test_a_large_body_and_one_that_is_no_json_are_refused(server):
    assert call(server, "POST", "/v1/score", b" " * (16 * 2**20 + 1)).status_code == 413
    assert call(server, "POST", "/v1/score", scores("v1\n"), content_type="text/plain").status_code == 415


@pytest.mark.parametrize(
    "problem", ["/etc/passwd.py", "../secrets.py", "secrets.py@2", "C:\\x", "things/level1/nothing", "x" * 301]
)
def test_a_client_names_problems_and_no_files(server, referee, problem):
    reply = call(server, "POST", "/v1/score", scores("v1\n", problem=problem))
    assert reply.status_code == 422
    assert referee.judged == []


def test_only_the_problems_that_are_served_may_be_asked_for(settings, referee):
    file = str(settings.suite_dirs[0] / "level1" / "times_two.py")
    with served(settings, referee, problems=(PLUS, file)) as server:
        assert call(server, "GET", "/v1/problems").json() == {"problems": ["file/times_two", PLUS]}
        assert call(server, "POST", "/v1/score", scores("v1\n")).status_code == 200
        assert call(server, "POST", "/v1/score", scores("v1\n", job="job-0002", problem=file)).status_code == 200
        assert call(server, "POST", "/v1/score", scores("v1\n", job="job-0003", problem=TIMES)).status_code == 422
        sized = scores("v1\n", job="job-0004", problem=f"{PLUS}@N=100000000")
        assert call(server, "POST", "/v1/score", sized).status_code == 422


def test_all_problems_of_the_suites_are_listed(server):
    found = call(server, "GET", "/v1/problems").json()["problems"]
    assert {PLUS, TIMES, "kernelwright/level1/softmax"} <= set(found)


def test_other_sites_pages_reach_nothing(server):
    assert call(server, "GET", "/v1/problems", host="evil.example").status_code == 421
    assert call(server, "GET", "/health", host="evil.example").json() == {"status": "ok"}


# ------------------------------------------------------------------------------------------------------- tokens


def test_without_its_token_nobody_is_served(settings, referee):
    with served(settings, referee, tokens={"ada": ADA}) as server:
        for token in (None, "wrong-secret-0123456789", ADA[:-1], f"{ADA}x"):
            reply = call(server, "POST", "/v1/score", scores("v1\n"), token=token)
            assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer")
            assert ADA not in reply.text
        assert call(server, "GET", "/health").json() == {"status": "ok"}
        assert "waiting" in call(server, "GET", "/health", token=ADA).json()
        assert call(server, "POST", "/v1/score", scores("v1\n"), token=ADA).status_code == 200
    assert len(referee.judged) == 1


def test_holders_of_tokens_are_clients_whatever_they_call_themselves(settings, referee):
    with served(settings, referee, tokens={"ada": ADA, "bob": BOB}) as server:
        call(server, "POST", "/v1/score", scores("v1\n"), token=ADA, client="bob")
        assert call(server, "GET", "/v1/jobs/job-0001", token=BOB).status_code == 404
        assert call(server, "GET", "/v1/jobs/job-0001", token=ADA, client="x").status_code == 200


def test_a_file_of_tokens_is_read_and_never_repeated(tmp_path):
    file = tmp_path / "tokens"
    file.write_text(f"ada {ADA}\n\nbob {BOB}\n")
    assert read_tokens(file) == {"ada": ADA, "bob": BOB}
    file.write_text(f"{ADA}\n")
    assert list(read_tokens(file).values()) == [ADA]
    for bad in ("", "short\n", f"ada {ADA} more\n", f"ada {ADA}\nada {BOB}\n", f"a/b {ADA}\n"):
        file.write_text(bad)
        with pytest.raises(UsageError) as caught:
            read_tokens(file)
        assert ADA not in str(caught.value)
        assert BOB not in str(caught.value)
    with pytest.raises(UsageError, match="cannot be read"):
        read_tokens(tmp_path / "missing")


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::"])
def test_other_machines_are_served_with_a_token_alone(settings, host):
    with pytest.raises(UsageError, match="can be reached from other machines"):
        serve_rewards(settings, RewardOptions(host=host))


def test_an_unknown_reward_or_a_taken_port_is_said(settings, server):
    with pytest.raises(UsageError, match="no reward is called"):
        serve_rewards(settings, RewardOptions(reward="fame", port=0))
    with pytest.raises(UsageError, match="cannot listen"):
        serve_rewards(settings, RewardOptions(port=server.port))


def test_the_command_has_its_options():
    from kernelwright.cli._rl_serve import serve

    shown = CliRunner().invoke(serve, ["--help"]).output
    for option in ("--host", "--port", "--reward", "--problems", "--queue", "--sessions", "--token-file", "--json"):
        assert option in shown


# ----------------------------------------------------------------------------------------------------- episodes


def test_an_episode_over_http(server, referee):
    begun = call(server, "POST", "/v1/episodes", {"job": "begin-01", "problem": PLUS, "turns": 2}).json()
    assert [message["role"] for message in begun["observation"]["messages"]] == ["system", "user"]
    step = f"/v1/episodes/{begun['episode']}/step"
    first = call(server, "POST", step, {"job": "step-001", "completion": "no kernel"}).json()
    assert (first["outcome"]["reward"], first["outcome"]["done"]) == (0.0, False)
    body = {"job": "step-002", "completion": f"```python\n# v2\n{KERNEL}```"}
    second = call(server, "POST", step, body).json()
    assert second["outcome"]["done"]
    assert second["score"]["returns"] == pytest.approx([0.4 * 1.3, 1.3])
    assert call(server, "POST", step, body).json() == second, "a turn asked for again is the same turn"
    assert len(referee.judged) == 1
    over = call(server, "POST", step, {"job": "step-003", "completion": "more"})
    assert (over.status_code, over.json()["detail"]) == (422, "the episode is over")


def test_an_episode_goes_on_after_a_restart_of_the_server(settings, referee):
    first, second = (
        {"job": f"step-00{number}", "completion": f"```python\n# v{number}\n{KERNEL}```"} for number in (1, 2)
    )
    with served(settings, referee) as server:
        begun = call(server, "POST", "/v1/episodes", {"job": "begin-01", "problem": PLUS, "turns": 3}, client="ada")
        step = f"/v1/episodes/{begun.json()['episode']}/step"
        before = call(server, "POST", step, first, client="ada").json()
    with Store.open(settings.store, readonly=True) as store:
        (run,) = store.runs()
    with served(settings, referee, run_id=run.id) as server:
        assert call(server, "POST", step, second, client="bob").status_code == 422, "it is still ada's"
        after = call(server, "POST", step, first, client="ada").json()
        assert after["outcome"]["observation"] == before["outcome"]["observation"], "a turn asked for again is one turn"
        assert after["score"] == before["score"]
        done = call(server, "POST", step, second, client="ada").json()
    assert [len(referee.judged), done["outcome"]["observation"]["turn"]] == [2, 2]
    assert len(done["score"]["returns"]) == 2
    with served(settings, referee) as server:
        assert call(server, "POST", step, second, client="ada").status_code == 422, "another run knows nothing of it"


def test_an_episode_belongs_to_its_client(server):
    begun = call(server, "POST", "/v1/episodes", {"job": "begin-01", "problem": PLUS}, client="ada").json()
    step = {"job": "step-001", "completion": "x"}
    for path, client in ((begun["episode"], "bob"), ("0" * 32, "ada")):
        assert call(server, "POST", f"/v1/episodes/{path}/step", step, client=client).status_code == 422
        step["job"] = "step-002"


def test_a_server_that_ends_answers_whoever_waits(settings, referee):
    replies = []
    with served(settings, referee) as server:
        server.may_judge.clear()
        ask = threading.Thread(target=lambda: replies.append(call(server, "POST", "/v1/score", scores("v1\n"))))
        ask.start()
        until(lambda: server.service.jobs.waiting)
    ask.join(10)
    assert replies[0].status_code == 503
    assert replies[0].headers["retry-after"] == "5"


@pytest.fixture
def own_signals():
    """The handlers of signals as they were, once a server has had them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_drops_what_is_judged_and_ends_the_run(settings, store, referee, own_signals):
    """In the main thread, as it is for the command: the judgement in hand is left, everything opened is closed."""
    replies, asking = [], []

    def started(url):
        server = SimpleNamespace(url=url)
        ask = threading.Thread(target=lambda: replies.append(call(server, "POST", "/v1/score", scores("v1\n", "v2\n"))))
        asking.append(ask)
        ask.start()

    def point(name):
        referee.notes.append(name)
        if name.startswith("judging v2"):
            os.kill(os.getpid(), signal.SIGTERM)

    referee.point = point
    serve_rewards(settings, RewardOptions(port=0), started=started, open_referee=lambda _: referee)
    asking[0].join(10)
    assert replies[0].status_code == 503
    assert referee.notes[-1] == "closed"
    assert [word for _, word, _ in referee.judged] == ["v1"]
    (run,) = store.runs()
    assert run.status == "finished"
    assert len(store.evaluations(run_id=run.id)) == 1

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    referee.point = referee.notes.append
    with served(settings, referee, run_id=run.id, reward="kernelwright") as server:
        found = call(server, "POST", "/v1/score", scores("v1\n", "v2\n")).json()["results"]
    assert [one["again"] for one in found] == [True, False], "a run that goes on pays for nothing twice"
