"""A spool: claims, leases, answers that count once, workers, and spools that travel as one file."""

from __future__ import annotations

import json
import zipfile

import pytest
from campaign_fakes import ENVIRONMENT, FakeReferee, FakeSession, make_job, make_problem

from kernelwright.config import Settings
from kernelwright.errors import MachineError, MissingToolError, NotYet, StoreError, UsageError
from kernelwright.pool import OwnSeat, SpoolFolder, SpoolPool, Worker, method_of, pack, unpack
from kernelwright.records import Status


class Clock:
    """A clock that a test moves. Waiting moves it too."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds


@pytest.fixture
def settings(tmp_path):
    return Settings(store=tmp_path / "store.db", cache_dir=tmp_path / "cache")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def folder(tmp_path, clock):
    return SpoolFolder(tmp_path / "spool", create=True, clock=clock)


@pytest.fixture
def pool(folder):
    return SpoolPool(folder)


class Shop:
    """Makes workers of a spool, each with its own view of the folder, as another process would have."""

    def __init__(self, path, settings, clock):
        self.path, self.settings, self.clock = path, settings, clock
        self.told = []

    def worker(self, referee=None, name="", **more):
        seat = OwnSeat(self.settings, lambda _: referee or FakeReferee())
        folder = SpoolFolder(self.path, clock=self.clock)
        given = {"tell": self.told.append, "wait": self.clock.wait, "clock": self.clock, **more}
        return Worker(folder, seat, name=name, **given)


@pytest.fixture
def shop(folder, settings, clock):
    return Shop(folder.path, settings, clock)


def post(pool, *jobs):
    for job in jobs:
        with pytest.raises(NotYet):
            pool.answer(job)


def test_a_worker_answers_what_was_asked(pool, shop, settings):
    job = make_job()
    post(pool, job, job)
    assert pool.state.waiting == 1
    report = shop.worker(FakeReferee({"v0": 3.0}), name="w").run(until_empty=True)
    assert (report.judged, report.why) == (1, "the spool is empty")
    answer = pool.answer(job)
    assert answer.evaluation.verdict.speedup("eager").median == 3.0
    assert answer.evaluation.candidate == job.candidate
    assert shop.worker().run(until_empty=True).judged == 0


def test_the_environment_is_known_from_the_card_of_a_worker(pool, shop):
    assert not pool.ready("cpp")
    assert "kernelwright worker --spool" in pool.missing()
    shop.worker().run(until_empty=True)
    assert pool.ready("cpp")
    assert pool.environment_for("cpp") == ENVIRONMENT


def test_a_run_that_was_judged_elsewhere_waits_for_that_machine(folder, shop):
    shop.worker().run(until_empty=True)
    pool = SpoolPool(folder, expected={"cpp": "another"})
    assert not pool.ready("cpp")
    with pytest.raises(MachineError, match="environment another"):
        pool.environment_for("cpp")


def test_one_claim_one_worker(folder, pool, settings, clock):
    post(pool, make_job())
    other = SpoolFolder(folder.path, clock=clock)
    assert folder.claim("a", lambda job: True) is not None
    assert other.claim("b", lambda job: True) is None


def test_the_job_of_a_dead_worker_waits_again_once_its_heartbeats_stop(folder, pool, shop, settings, clock):
    job = make_job()
    post(pool, job)
    folder.claim("dead", lambda job: True)
    assert folder.take_back() == []
    clock.now += 59
    assert folder.take_back() == []
    clock.now += 2
    assert [entry.worker for entry in folder.take_back()] == ["dead"]
    assert [entry.losses for entry in folder.waiting()] == [1]
    assert shop.worker().run(until_empty=True).judged == 1
    assert pool.answer(job).evaluation.verdict.passed


def test_heartbeats_keep_a_claim(folder, pool, shop, settings, clock):
    """The worker's clock does not matter: its heartbeats are a number that grows."""
    shop.worker(name="alive").run(until_empty=True)
    (beat,) = folder.workers()
    post(pool, make_job())
    folder.claim("alive", lambda job: True)
    for number in range(2, 9):
        folder.beat(beat.model_copy(update={"beats": number}))
        assert folder.take_back() == []
        clock.now += 40
    clock.now += 61
    assert len(folder.take_back()) == 1


def test_a_worker_waits_for_jobs_that_may_come_back(folder, pool, shop, settings):
    post(pool, make_job())
    folder.claim("dead", lambda job: True)
    report = shop.worker().run(until_empty=True)
    assert report.judged == 1


def test_a_candidate_that_cost_two_workers_is_quarantined_unjudged(folder, pool, shop, settings, clock):
    job = make_job()
    post(pool, job)
    for name in ("first", "second"):
        folder.claim(name, lambda job: True)
        folder.take_back()
        clock.now += 61
        folder.take_back()
    referee = FakeReferee()
    assert shop.worker(referee).run(until_empty=True).judged == 1
    assert referee.judged == []
    verdict = pool.answer(job).evaluation.verdict
    assert (verdict.status, verdict.environment) == (Status.QUARANTINED, ENVIRONMENT.id)
    assert "2 workers were lost" in verdict.reason


def test_the_driver_quarantines_where_no_worker_is_left(folder, pool, shop, settings, clock):
    shop.worker().run(until_empty=True)
    job = make_job()
    post(pool, job)
    for name in ("first", "second"):
        folder.claim(name, lambda job: True)
        pool.look()
        clock.now += 61
        pool.look()
    assert pool.answer(job).evaluation.verdict.status is Status.QUARANTINED


def test_the_first_answer_counts(folder, pool, shop, settings, clock):
    job = make_job()
    post(pool, job)
    slow = OwnSeat(settings, lambda _: FakeReferee({"v0": 9.0}))
    entry, claimed = folder.claim("slow", lambda job: True)
    late = slow.answer(claimed)
    folder.release(entry, lost=True)
    shop.worker(FakeReferee({"v0": 2.0})).run(until_empty=True)
    assert not folder.finish(entry, late)
    assert pool.answer(job).evaluation.verdict.speedup("eager").median == 2.0
    assert folder.state()[:3] == (0, 0, 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": "0.0.0+other"}, "asked by kernelwright 0.0.0+other"),
        ({"environment": "another"}, "for environment another"),
    ],
)
def test_a_job_of_another_version_or_machine_is_left_alone(change, said, pool, shop, settings):
    post(pool, make_job().model_copy(update=change), make_job("v1\n"))
    report = shop.worker().run(until_empty=True)
    assert (report.judged, report.refused) == (1, 1)
    assert any(said in line for line in shop.told)
    assert pool.state.waiting == 1


def test_a_fault_of_the_problem_is_raised_where_it_was_asked_and_may_be_asked_again(pool, shop, settings):
    job = make_job()
    post(pool, job)
    faults = {"plus_one": [UsageError("no such baseline", hint="use another")]}
    assert shop.worker(FakeReferee(faults=faults)).run(until_empty=True).faults == 1
    fault = pool.answer(job).fault
    with pytest.raises(UsageError, match="no such baseline"):
        raise fault.error("there")
    post(pool, job)
    assert shop.worker().run(until_empty=True).judged == 1


def test_a_worker_tries_a_job_again_on_which_the_machine_failed(pool, shop, settings):
    job = make_job()
    post(pool, job)
    referee = FakeReferee(faults={"plus_one": [MachineError("a worker died")]})
    assert shop.worker(referee).run(until_empty=True).judged == 1
    assert pool.answer(job).evaluation.verdict.passed


def test_a_worker_that_can_judge_nothing_gives_its_job_back(folder, pool, shop, settings):
    post(pool, make_job())
    referee = FakeReferee(faults={"plus_one": [MissingToolError("no compiler", hint="install g++")]})
    with pytest.raises(MissingToolError, match="no compiler"):
        shop.worker(referee).run(until_empty=True)
    assert [entry.losses for entry in folder.waiting()] == [0]


def test_a_sick_machine_stops_its_worker_and_keeps_the_jobs(folder, pool, shop, settings):
    post(pool, *(make_job(name=f"p{n}") for n in range(5)))
    faults = {f"p{n}": [MachineError("xid 79")] * 9 for n in range(5)}
    with pytest.raises(MachineError, match="on 3 jobs in a row: xid 79"):
        shop.worker(FakeReferee(faults=faults)).run()
    assert len(folder.waiting()) == 3


def test_a_worker_ends_in_time(pool, shop, settings, clock):
    jobs = [make_job(f"v{n}\n") for n in range(9)]
    post(pool, *jobs)

    def slow(point):
        clock.now += 10 if point.startswith("judging") else 0

    worker = shop.worker(FakeReferee(point=slow))
    worker._seat.answer = _timed(worker._seat.answer, clock)
    report = worker.run(within_s=35)
    assert (report.judged, report.why) == (3, "its time is over")


def _timed(answer, clock):
    def timed(*given):
        before = clock.now
        found = answer(*given)
        return found.model_copy(update={"seconds": clock.now - before})

    return timed


def test_jobs_that_take_long_come_first_and_one_problem_keeps_its_session(pool, folder, shop, settings, clock):
    names = {"short": 1.0, "long": 50.0}
    opened = []
    for name, seconds in names.items():
        pool._seconds[make_problem(name).id].append(seconds)
    post(pool, *(make_job(f"v{n}\n", name) for n in range(2) for name in names))
    shop.worker(FakeReferee(point=opened.append)).run(until_empty=True)
    assert [point for point in opened if point.startswith("open")] == ["open long", "open short"]


@pytest.mark.parametrize(("status", "left"), [(Status.PASSED, 0), (Status.RUNTIME_ERROR, 1)])
def test_a_failure_while_the_worker_is_asked_to_end_is_no_verdict(status, left, folder, pool, shop, settings):
    """A signal to a whole group of processes, as a batch system sends it, ends candidates too."""
    post(pool, make_job())
    asked = []
    referee = FakeReferee(statuses={"v0": status}, point=lambda name: name.startswith("judging") and asked.append(1))
    report = shop.worker(referee, stop=lambda: bool(asked)).run()
    assert report.judged == 1 - left
    assert [entry.losses for entry in folder.waiting()] == [0] * left


def test_a_full_disk_is_an_error_and_the_job_comes_back(folder, pool, shop, settings, monkeypatch):
    post(pool, make_job())

    def full(fd):
        raise OSError(28, "No space left on device")

    worker = shop.worker()
    publish = worker._folder._publish

    def failing(answer):
        monkeypatch.setattr("os.fsync", full)
        return publish(answer)

    worker._folder._publish = failing
    with pytest.raises(StoreError, match="No space left"):
        worker.run(until_empty=True)
    monkeypatch.undo()
    assert folder.state()[:3] == (1, 0, 0)
    assert not list((folder.path / "temporary").iterdir())
    assert shop.worker().run(until_empty=True).judged == 1


def test_a_damaged_file_is_put_aside(folder, pool, shop, settings):
    job = make_job()
    post(pool, job)
    (waiting,) = folder.waiting()
    path = folder.path / "jobs" / waiting.name
    path.write_text("{")
    assert shop.worker().run(until_empty=True).judged == 0
    assert path.with_name(f"{path.name}.damaged").exists()
    post(pool, job)
    assert shop.worker().run(until_empty=True).judged == 1
    folder.answer_path(job.id).write_text("nothing")
    post(pool, job)


def test_an_answer_about_another_candidate_is_no_answer(folder, pool, shop, settings):
    job, other = make_job(), make_job("v1\n")
    post(pool, other)
    shop.worker().run(until_empty=True)
    text = folder.answer_path(other.id).read_text().replace(other.id, job.id)
    folder.answer_path(job.id).write_text(text)
    post(pool, job)


@pytest.mark.parametrize("before", ["a file", "a folder of others", "another version"])
def test_a_folder_of_others_is_refused(before, tmp_path):
    path = tmp_path / "there"
    if before == "a file":
        path.write_text("x")
    else:
        path.mkdir()
        (path / ("spool.json" if before == "another version" else "thesis.tex")).write_text("{}")
    with pytest.raises(UsageError, match=r"no spool|another version"):
        SpoolFolder(path, create=True)


def test_a_spool_travels_there_and_back(folder, pool, settings, tmp_path, clock):
    jobs = [make_job(f"v{n}\n") for n in range(3)]
    post(pool, *jobs)
    folder.claim("someone", lambda job: True)
    assert pack(folder, tmp_path / "there.zip") == (3, 0, 0)
    away = SpoolFolder(tmp_path / "away", create=True, clock=clock)
    assert unpack(tmp_path / "there.zip", away.path) == (3, 0, 0)
    Shop(away.path, settings, clock).worker().run(until_empty=True)
    assert pack(away, tmp_path / "back.zip") == (0, 3, 1)
    assert unpack(tmp_path / "back.zip", folder) == (0, 3, 1)
    assert unpack(tmp_path / "back.zip", folder) == (0, 0, 0)
    assert folder.state()[:3] == (0, 0, 3)
    assert all(pool.answer(job).evaluation.verdict.passed for job in jobs)
    assert pool.environment_for("cpp") == ENVIRONMENT


def _with(name, text):
    def damage(path):
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(name, text)

    return damage


def _moved(old, new):
    """The contents of a good file under the name of another one."""

    def damage(path):
        with zipfile.ZipFile(path, "a") as archive:
            (name,) = (name for name in archive.namelist() if name.startswith(old))
            archive.writestr(new, archive.read(name))

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        _moved("workers/", "workers/other.json"),
        _moved("jobs/", f"jobs/000000-{'0' * 8}-{'0' * 32}.0.json"),
        _with("workers/../../x.json", "{}"),
        _with("jobs/x.json", "{}"),
        _with("answers/00.answer.json", json.dumps({"job": "00", "version": "1"})),
        _with("../escape", ""),
        lambda path: path.write_bytes(path.read_bytes()[:80]),
        lambda path: path.write_bytes(b""),
        lambda path: path.unlink(),
    ],
)
def test_a_damaged_or_hostile_file_adds_nothing(damage, folder, pool, shop, tmp_path, clock):
    shop.worker().run(until_empty=True)
    post(pool, make_job())
    pack(folder, tmp_path / "there.zip")
    damage(tmp_path / "there.zip")
    away = SpoolFolder(tmp_path / "away", create=True, clock=clock)
    before = sorted(path for path in tmp_path.rglob("*") if path.name != "there.zip")
    for spool in (away, tmp_path / "missing"):
        with pytest.raises(UsageError):
            unpack(tmp_path / "there.zip", spool)
    assert sorted(path for path in tmp_path.rglob("*") if path.name != "there.zip") == before


class ThreadedReferee(FakeReferee):
    """Judges in the environment that its settings make, and remembers them."""

    def __init__(self, settings, made):
        super().__init__()
        self.environment = ENVIRONMENT.model_copy(update={"threads": settings.threads})
        made.append(settings)

    def environment_for(self, backend):
        return self.environment


@pytest.fixture
def threaded(monkeypatch, settings):
    """A seat whose verdicts name the environment of its referee; and the settings of its referees."""
    judge, made = FakeSession.judge, []

    def named(self, *given, **more):
        found, here = judge(self, *given, **more), self.referee.environment
        verdict = found.verdict.model_copy(update={"environment": here.id})
        return found.model_copy(update={"verdict": verdict, "environment": here})

    monkeypatch.setattr(FakeSession, "judge", named)
    return OwnSeat(settings, lambda given: ThreadedReferee(given, made)), made


def test_a_job_is_judged_by_the_settings_of_its_run(folder, threaded, settings):
    """A worker that has said what it is has opened a referee with settings of its own."""
    seat, made = threaded
    strict = settings.with_values(own_kernels="strict", threads=2, measurement="quick", baselines="eager")
    pool = SpoolPool(folder, threads=2)
    Worker(folder, seat).run(until_empty=True)
    job = make_job(settings=method_of(strict), environment=pool.environment_for("cpp").id)
    post(pool, job)
    report = Worker(folder, seat).run(until_empty=True)
    assert (report.judged, report.refused) == (1, 0)
    assert pool.answer(job).evaluation.environment.threads == 2
    assert method_of(made[-1]) == method_of(strict)


def test_jobs_of_one_method_share_a_referee(folder, pool, threaded):
    seat, made = threaded
    post(pool, *(make_job(f"v{n}\n") for n in range(3)))
    assert Worker(folder, seat).run(until_empty=True).judged == 3
    assert len(made) == 1


@pytest.mark.parametrize(
    ("own", "asked", "used"),
    [
        ("auto", "auto", "auto"),
        ("auto", "bwrap", "bwrap"),
        ("auto", "none", None),
        ("bwrap", "auto", "bwrap"),
        ("bwrap", "process", None),
        ("bwrap", "none", None),
        ("none", "auto", "none"),
        ("none", "none", "none"),
    ],
)
def test_a_job_takes_no_sandbox_away(own, asked, used, settings):
    """The owner of a machine says how candidates are confined on it, not the one who writes into the folder."""
    made = []
    seat = OwnSeat(settings.with_values(sandbox=own), lambda given: made.append(given) or FakeReferee())
    answer = seat.answer(make_job(settings=method_of(settings.with_values(sandbox=asked))))
    if used is None:
        assert made == []
        assert f"asks for sandbox {asked}" in answer.fault.message
    else:
        assert answer.evaluation.verdict.passed
        assert made[0].sandbox == used


def test_a_worker_waits_for_the_job_of_one_that_died_after_its_heartbeats(folder, pool, shop):
    shop.worker(name="dead").run(until_empty=True)
    post(pool, make_job())
    folder.claim("dead", lambda job: True)
    assert shop.worker(name="other").run(until_empty=True).judged == 1


def test_the_state_counts_workers_whose_heartbeats_grow(folder, pool, shop):
    shop.worker(name="dead").run(until_empty=True)
    shop.worker(name="alive").run(until_empty=True)
    pool.look()
    alive = next(beat for beat in folder.workers() if beat.worker == "alive")
    folder.beat(alive.model_copy(update={"beats": 9}))
    pool.look()
    assert pool.state.seats == 1
