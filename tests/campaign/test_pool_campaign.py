"""A run ends alike on whichever pool judges it, and goes on where it stopped without judging anything twice."""

from __future__ import annotations

import json
import threading
from collections import Counter
from contextlib import closing, contextmanager

import pytest
from campaign_fakes import (
    ENVIRONMENT,
    FakeReferee,
    Seats,
    line_recipe,
    make_candidate,
    make_job,
    make_problem,
    register_scripted_roles,
)
from campaign_models import reply_to, tokens_of
from llm_server import Answer, serve
from test_campaign_models import settings_of

from kernelwright.campaign import Campaign, SamplePlan, Sampler
from kernelwright.campaign._lane import Elsewhere, Lane
from kernelwright.config import Settings
from kernelwright.errors import MachineError, NotYet, UsageError
from kernelwright.pool import Answer as PoolAnswer
from kernelwright.pool import Dispatcher, OwnSeat, SpoolFolder, SpoolPool, Worker, closing_pool, pack, unpack
from kernelwright.records import Status
from kernelwright.store import Store

PROBLEMS = [make_problem(name) for name in ("one", "two", "three", "four")]
SPEEDUPS = {"v0": 1.1, "v1": 2.0, "v2": 1.6}
STATUSES = {"v2": Status.INCORRECT_NUMERICAL}


@pytest.fixture(autouse=True, scope="module")
def scripted():
    register_scripted_roles()


def referee():
    return FakeReferee(SPEEDUPS, STATUSES)


def settings_in(folder, **more):
    given = {"coder": "scripted", "judge": "scripted", "rounds": 3, "parallel_problems": 4, **more}
    return Settings(store=folder / "store.db", cache_dir=folder / "cache", **given)


def facts(result):
    return [(row.problem, row.state, row.candidate, row.status, row.confirmed, row.rounds) for row in result.rows]


class Ran:
    """A finished run: what came of it, what was judged, and what the store holds."""

    def __init__(self, result, judged, store):
        self.rows = facts(result)
        self.status = result.status
        self.judged = Counter(judged)
        self.evaluations = Counter(
            (e.candidate.problem_id, e.candidate.source[:2], e.verdict.stage, e.environment.id)
            for e in store.evaluations(run_id=result.run_id)
        )
        self.sound = store.check().ok


def locally(folder):
    judge = referee()
    settings = settings_in(folder, parallel_problems=1)
    with Store.open(settings.store) as store:
        result = Campaign(settings, store, open_referee=lambda _: judge).run(PROBLEMS)
        return Ran(result, judge.judged, store)


def on_seats(folder):
    judges_of = [referee(), referee()]
    settings = settings_in(folder)
    seats = [OwnSeat(settings, lambda _, own=own: own, name=str(n)) for n, own in enumerate(judges_of)]

    @contextmanager
    def open_pool(settings, languages, **more):
        with closing_pool(Dispatcher(Seats(*seats), look_s=0.01, **more)) as pool:
            yield pool

    home = referee()
    with Store.open(settings.store) as store:
        result = Campaign(settings, store, open_referee=lambda _: home, open_pool=open_pool).run(PROBLEMS)
        assert home.judged == []
        return Ran(result, [one for own in judges_of for one in own.judged], store)


def through_a_spool(folder):
    settings = settings_in(folder, pool=f"spool:{folder / 'spool'}")
    judges_of, over = [referee(), referee()], threading.Event()
    spool = SpoolFolder(folder / "spool", create=True)
    workers = [
        Worker(spool, OwnSeat(settings, lambda _, own=own: own), stop=over.is_set, wait=lambda s: over.wait(0.01))
        for own in judges_of
    ]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    home = referee()
    try:
        with Store.open(settings.store) as store:
            result = Campaign(settings, store, open_referee=lambda _: home).run(PROBLEMS)
            assert home.judged == []
            assert spool.state()[:3] == (0, 0, 0)  # what the store holds is not kept twice
            return Ran(result, [one for own in judges_of for one in own.judged], store)
    finally:
        over.set()
        for thread in threads:
            thread.join()


def by_archives(folder):
    """The driver pauses whenever it waits for verdicts; its spool is carried to a worker and back."""
    settings = settings_in(folder, pool=f"spool:{folder / 'here'}", mailbox_minutes=0)
    here, away = SpoolFolder(folder / "here", create=True), SpoolFolder(folder / "away", create=True)
    judge, pauses = referee(), 0

    def judged_away():
        pack(here, folder / "there.zip")
        unpack(folder / "there.zip", away)
        Worker(away, OwnSeat(settings, lambda _: judge)).run(until_empty=True)
        pack(away, folder / "back.zip")
        unpack(folder / "back.zip", here)

    judged_away()
    with Store.open(settings.store) as store:
        result = Campaign(settings, store, open_referee=lambda _: referee()).run(PROBLEMS)
        while result.status != "finished":
            assert (result.status, result.reason) == ("paused", "replies")
            pauses += 1
            assert pauses < 20
            judged_away()
            result = Campaign(settings, store, open_referee=lambda _: referee()).resume(result.run_id)
        assert pauses >= 3
        return Ran(result, judge.judged, store)


@pytest.mark.parametrize("way", [on_seats, through_a_spool, by_archives])
def test_a_run_ends_as_on_this_machine_and_nothing_is_judged_twice(way, tmp_path):
    for name in ("local", "pool"):
        (tmp_path / name).mkdir()
    local, other = locally(tmp_path / "local"), way(tmp_path / "pool")
    assert local.rows[0][3] is Status.PASSED
    assert other.rows == local.rows
    assert other.judged == local.judged
    assert max(other.judged.values()) == 1
    assert other.evaluations == local.evaluations
    assert other.status == "finished"
    assert other.sound


def test_a_bench_asks_for_all_its_samples_at_once(tmp_path):
    settings = settings_in(tmp_path, pool=f"spool:{tmp_path / 'spool'}", mailbox_minutes=0)
    judge, spool = referee(), SpoolFolder(tmp_path / "spool", create=True)

    def work():
        return Worker(spool, OwnSeat(settings, lambda _: judge)).run(until_empty=True)

    work()
    with Store.open(settings.store) as store:
        sampler = Sampler(settings, store, open_referee=lambda _: referee())
        run_id = sampler.create(SamplePlan(name="b", samples=3), PROBLEMS)
        assert sampler.work(run_id).reason == "replies"
        samples = [sample for problem in PROBLEMS for sample in store.run_samples(run_id, problem.id)]
        assert work().judged == len({s.candidate.sha256 + s.problem for s in samples}) > 0
        result = sampler.work(run_id)
        assert result.status == "finished"
        assert {row.state for row in result.rows} == {"done"}


def test_a_run_waits_for_its_first_worker_no_longer_than_asked(tmp_path):
    told = []
    settings = settings_in(tmp_path, pool=f"spool:{tmp_path / 'spool'}", mailbox_minutes=0)
    with Store.open(settings.store) as store:
        result = Campaign(settings, store, open_referee=lambda _: referee(), tell=told.append).run(PROBLEMS)
    assert (result.status, result.reason) == ("paused", "replies")
    assert any("kernelwright worker --spool" in event.data.get("text", "") for event in told)


def test_a_resumed_run_goes_on_in_its_pool_and_environment(tmp_path):
    spool, judge = SpoolFolder(tmp_path / "spool", create=True), referee()
    settings = settings_in(tmp_path, pool=f"spool:{tmp_path / 'spool'}", mailbox_minutes=0)
    Worker(spool, OwnSeat(settings, lambda _: judge)).run(until_empty=True)
    with Store.open(settings.store) as store:
        run_id = Campaign(settings, store, open_referee=lambda _: referee()).run(PROBLEMS[:1]).run_id
        Worker(spool, OwnSeat(settings, lambda _: judge)).run(until_empty=True)
        plain = settings_in(tmp_path)
        Campaign(plain, store, open_referee=lambda _: referee()).resume(run_id)
        assert len(judge.judged) == 1
        (evaluation,) = store.evaluations(run_id=run_id)
        assert evaluation.environment == ENVIRONMENT
        for worker in (spool.path / "workers").iterdir():
            worker.write_text(worker.read_text().replace('"cpu":"test"', '"cpu":"another"'))
        told = []
        result = Campaign(plain, store, open_referee=lambda _: referee(), tell=told.append).resume(run_id)
        assert result.reason == "replies"
        assert any("waiting for" in event.data.get("text", "") for event in told)


@pytest.mark.parametrize("spec", ["nowhere", "ray:", "spool", "spool:", "local:2"])
def test_an_unknown_pool_is_refused_before_a_run_begins(spec, tmp_path):
    settings = settings_in(tmp_path, pool=spec)
    with Store.open(settings.store) as store:
        with pytest.raises(UsageError, match="unknown pool"):
            Campaign(settings, store, open_referee=lambda _: referee()).run(PROBLEMS)
        assert store.runs() == []


def other_ideas(asked):
    """A model that is asked the same thing again has another idea."""
    reply = json.loads(reply_to(asked))
    if "source" in reply:
        reply["source"] = f"v{asked.number}\n{reply['source']}"
    return Answer(json.dumps(reply), tokens_of(asked))


@pytest.mark.parametrize("recipe", ["best-of-n", "line"])
def test_all_samples_of_a_round_are_asked_for_at_once(recipe, tmp_path):
    """So a batch of a model's candidates needs one trip to the machine that judges, not one for each."""
    recipe = line_recipe(tmp_path) if recipe == "line" else recipe
    judge, spool = FakeReferee(), SpoolFolder(tmp_path / "spool", create=True)

    with serve(other_ideas) as server:
        settings = settings_of(
            tmp_path, server, recipe=recipe, recipe_samples=4, rounds=1, pool=f"spool:{spool.path}", mailbox_minutes=0
        )
        worker = OwnSeat(settings, lambda _: judge)
        Worker(spool, worker).run(until_empty=True)
        with Store.open(settings.store) as store:
            result = Campaign(settings, store, open_referee=lambda _: FakeReferee()).run(PROBLEMS[:2])
            assert result.reason == "replies"
            assert len(spool.waiting()) == 8
            trips = 0
            while result.status != "finished":
                trips += 1
                Worker(spool, worker).run(until_empty=True)
                result = Campaign(settings, store, open_referee=lambda _: FakeReferee()).resume(result.run_id)
    assert trips <= 3  # the candidates, and the confirmations of the winner and the runner-up
    assert max(Counter(judge.judged).values()) == 1
    assert len(judge.judged) >= 10


def test_the_seats_need_the_cores_for_threads_and_the_driver_does_not(tmp_path):
    spool = SpoolFolder(tmp_path / "spool", create=True)
    settings = settings_in(tmp_path, pool=f"spool:{spool.path}", threads=64, mailbox_minutes=0)
    here, there = [], []
    worker = Worker(spool, OwnSeat(settings, lambda given: there.append(given.threads) or referee()))
    worker.run(until_empty=True)
    with Store.open(settings.store) as store:
        campaign = Campaign(settings, store, open_referee=lambda given: here.append(given.threads) or referee())
        assert campaign.run(PROBLEMS[:1]).status == "paused"
    worker.run(until_empty=True)
    assert (set(here), set(there)) == ({1}, {64})


def test_what_a_fault_repeats_is_told_once(tmp_path):
    """The fault comes between two candidates of a round."""
    judged, told = [], []

    def point(name):
        if name.startswith("judging"):
            judged.append(name)
            if len(judged) == 2:
                raise MachineError("no pulse")

    with serve(other_ideas) as server:
        settings = settings_of(tmp_path, server, recipe="best-of-n", recipe_samples=3, rounds=1)
        with Store.open(settings.store) as store:
            judge = FakeReferee(point=point)
            campaign = Campaign(settings, store, open_referee=lambda _: judge, tell=told.append)
            assert campaign.run(PROBLEMS[:1]).status == "finished"
    kernels = [event.data["candidate"] for event in told if event.kind == "judged"]
    assert len(kernels) == len(set(kernels)) == 3


def test_a_kernel_that_is_judged_again_is_judged_anew(tmp_path):
    """The second question is not answered by the first answer, which a resumed run would find."""
    spool, judge = SpoolFolder(tmp_path / "spool", create=True), FakeReferee()
    settings, problem = settings_in(tmp_path), PROBLEMS[0]
    Worker(spool, OwnSeat(settings, lambda _: judge)).run(until_empty=True)
    kept = []
    elsewhere = Elsewhere(SpoolPool(spool), "R", lambda problem, candidate: len(kept))
    with closing(Lane(settings, judge, own_thread=False, elsewhere=elsewhere)) as lane:
        session = lane.session(problem, "cpp", print)
        for times in (1, 2):
            with pytest.raises(NotYet):
                session.judge(make_candidate(problem))
            Worker(spool, OwnSeat(settings, lambda _: judge)).run(until_empty=True)
            kept.append(session.judge(make_candidate(problem)))
            assert len(judge.judged) == times


@pytest.mark.parametrize("pooled", [False, True])
def test_machine_code_is_compared_where_the_candidate_is_judged(tmp_path, pooled):
    judge = FakeReferee(machine_codes={"v0": "m"})
    home = FakeReferee() if pooled else judge
    settings, problem = settings_in(tmp_path), PROBLEMS[0]
    candidate = make_candidate(problem)
    with closing_pool(Dispatcher(Seats(OwnSeat(settings, lambda _: judge)), look_s=0.01)) as pool:
        elsewhere = Elsewhere(pool, "R", lambda problem, candidate: 0) if pooled else None
        with closing(Lane(settings, home, own_thread=True, elsewhere=elsewhere)) as lane:
            session = lane.session(problem, "cpp", print)
            assert session.judge_unless(frozenset({"l", "m"}), candidate) == (None, "m")
            assert judge.judged == []
            for known, code in ((frozenset({"l"}), "m"), (None, "")):
                evaluation, found = session.judge_unless(known, candidate)
                assert (evaluation.verdict.status, found) == (Status.PASSED, code)
    assert len(judge.judged) == 2


def test_a_job_has_one_name_whatever_is_known_and_only_what_is_known_answers_it():
    job = make_job(known=())
    later = job.model_copy(update={"known": ("m",)})
    assert job.id == later.id == make_job().id
    answer = PoolAnswer(job=job.id, version=job.version, machine_code="m")
    assert later.text != job.text
    assert answer.refusal(later) == ""
    empty = answer.model_copy(update={"machine_code": ""})
    assert answer.refusal(job) == empty.refusal(later) == "it has no single outcome"
