"""What the board shows, and what a resume finds again."""

from __future__ import annotations

import pytest

from kernelwright.errors import UsageError
from kernelwright.records import Problem, RunConfig, Stage, Status

SOFTMAX = "suite/level1/softmax"
REFUSALS = [Status.INCORRECT_NUMERICAL, Status.REWARD_HACK, Status.QUARANTINED]


def test_best_goes_by_the_lower_bound(store, make, lows):
    for source, low in (("a", 1.2), ("b", 1.9), ("c", 1.5)):
        store.record_evaluation(make.evaluation(source, low=low))
    (row,) = store.best()
    assert row.candidate == make.candidate("b").sha256
    assert (row.problem, row.baseline, row.environment) == (SOFTMAX, "eager", make.environment.id)
    assert (row.speedup.low, row.speedup.faster, row.confirmed) == (1.9, True, False)
    assert row.latency_ms.median == pytest.approx(1 / 1.9)
    assert lows(baseline="compile") == []
    assert lows(problem=SOFTMAX, environment=make.environment.id) == [1.9]
    assert lows(problem="other") == lows(environment="other") == []


@pytest.mark.parametrize(
    "worthless",
    [
        {"control": True},
        {"low": None},
        {"status": Status.UNCHECKED},
        {"status": Status.RUNTIME_ERROR},
        {"status": Status.INCORRECT_NUMERICAL},
    ],
)
def test_only_what_passed_and_was_timed_as_a_candidate_counts(store, make, lows, worthless):
    store.record_evaluation(make.evaluation("a", **({"low": 9.0} | worthless)))
    assert lows() == []
    store.record_evaluation(make.evaluation("b", low=1.1))
    assert lows() == [1.1]


def test_what_is_not_eligible_is_on_no_board_and_may_be_the_best_there_is(store, make):
    place = (SOFTMAX, make.environment.id, "eager")
    for source, low, eligible in (("library", 3.0, False), ("own", 1.5, True)):
        store.record_evaluation(make.evaluation(source, low=low, eligible=eligible))
    assert [(row.speedup.low, row.eligible) for row in store.best()] == [(3.0, False)]
    assert [row["low"] for row in store.ranked(*place, "cpp")] == [1.5]
    assert [row["low"] for row in store.entrants(place[1], "eager")] == [1.5]
    assert store.speedups_on(*place, "cpp") == [pytest.approx(1.6)]
    store.record_evaluation(make.evaluation("own", status=Status.INELIGIBLE))
    assert [row["low"] for row in store.ranked(*place, "cpp")] == [1.5], "that strict refuses it says nothing here"
    store.record_evaluation(make.evaluation("own", status=Status.INELIGIBLE, eligible=False))
    assert store.ranked(*place, "cpp") == []
    store.record_evaluation(make.evaluation("own", low=1.6))
    assert [row["low"] for row in store.ranked(*place, "cpp")] == [1.6]


def test_a_confirmation_replaces_the_search_timing(store, make, lows):
    store.record_evaluation(make.evaluation("a", low=2.0))
    assert lows(confirmed_only=True) == []
    store.record_evaluation(make.evaluation("a", low=1.6, confirmed=True))
    assert lows() == lows(confirmed_only=True) == [1.6]
    store.record_evaluation(make.evaluation("a", low=2.5))
    assert lows() == [1.6]
    store.record_evaluation(make.evaluation("b", low=1.8))
    assert lows() == [1.6], "a search timing ranks below every confirmation"
    store.record_evaluation(make.evaluation("b", low=1.7, confirmed=True))
    assert lows() == [1.7]
    store.record_evaluation(make.evaluation("c", low=1.9))
    assert lows() == lows(confirmed_only=True) == [1.7]
    store.record_evaluation(make.evaluation("a", low=1.8, confirmed=True))
    assert lows(confirmed_only=True) == [1.8]


@pytest.mark.parametrize("refusal", REFUSALS)
def test_what_was_refused_leaves_the_board_until_it_is_confirmed(store, make, lows, refusal):
    store.record_evaluation(make.evaluation("a", low=2.0))
    store.record_evaluation(make.evaluation("b", low=1.2))
    store.record_evaluation(make.evaluation("a", status=refusal))
    assert lows() == [1.2]
    store.record_evaluation(make.evaluation("a", low=2.0))
    assert lows() == [1.2]
    store.record_evaluation(make.evaluation("a", low=1.9, confirmed=True))
    assert lows() == [1.9]


def test_a_crash_of_the_machine_or_a_timeout_refutes_nothing(store, make, lows):
    store.record_evaluation(make.evaluation("a", low=2.0))
    store.record_evaluation(make.evaluation("a", status=Status.TIMEOUT))
    assert lows() == [2.0]


def test_quarantine_withdraws_without_an_edit(store, make, lows):
    evaluation_id = store.record_evaluation(make.evaluation("a", low=2.0, confirmed=True))
    store.record_evaluation(make.evaluation("b", low=1.2))
    before = store.evaluation(evaluation_id).evaluation
    store.quarantine(evaluation_id, "faster than the memory")
    store.quarantine(evaluation_id, "seen again")
    assert lows() == [1.2]
    after = store.evaluation(evaluation_id)
    assert after.evaluation == before
    assert after.quarantined == "faster than the memory; seen again"


def test_environments_and_baselines_are_ranked_apart(store, make):
    other = make.environment.model_copy(update={"threads": 2})
    store.record_evaluation(make.evaluation("a", low=2.0, baselines=("eager",)))
    store.record_evaluation(make.evaluation("b", low=1.1, baselines=("eager", "compile")))
    store.record_evaluation(make.evaluation("c", low=3.0, environment=other))
    assert {(row.environment, row.speedup.low) for row in store.best()} == {
        (make.environment.id, 2.0),
        (other.id, 3.0),
    }
    assert [row.speedup.low for row in store.best(baseline="compile")] == [1.1]


def test_a_changed_reference_starts_a_new_board(store, make, lows):
    store.record_evaluation(make.evaluation("a", low=2.0))
    changed = make.problem(source="class Model: 'harder'\n")
    store.record_problem(changed)
    assert lows() == []
    assert store.find_evaluation(candidate=make.candidate("a").sha256, problem=SOFTMAX) is None
    store.record_evaluation(make.evaluation("a", low=1.3))
    assert lows() == [1.3]
    store.record_problem(make.problem())
    assert lows() == [2.0]


def test_views_agree_with_best(store, make):
    store.record_evaluation(make.evaluation("a", low=2.0))
    store.record_evaluation(make.evaluation("b", low=1.5))
    store.record_evaluation(
        make.evaluation("c", status=Status.COMPILE_ERROR, failed_stage="build", stage=Stage.SCREENED)
    )
    store.record_evaluation(
        make.evaluation("c", status=Status.COMPILE_ERROR, failed_stage="build", stage=Stage.SCREENED)
    )
    assert [row["low"] for row in store.query("SELECT low FROM best_per_problem")] == [2.0]
    assert [row["rank"] for row in store.query("SELECT rank FROM leaderboard ORDER BY low")] == [2, 1]
    (row,) = store.query("SELECT * FROM failure_taxonomy")
    assert (row["status"], row["failed_stage"], row["evaluations"], row["candidates"]) == (
        "COMPILE_ERROR",
        "build",
        2,
        1,
    )


def test_a_resume_finds_what_is_finished(store, make):
    problem = make.problem()
    runs = [store.create_run(RunConfig(problems=(problem.id,)), [problem]) for _ in range(2)]
    sha = make.candidate().sha256
    assert store.find_evaluation(candidate=sha, problem=problem.id, run_id=runs[0]) is None
    search = store.record_evaluation(make.evaluation(), run_id=runs[0], step=1)
    found = store.find_evaluation(candidate=sha, problem=problem.id, run_id=runs[0])
    assert (found.id, found.step, found.verdict) == (search, 1, make.evaluation().verdict)
    assert store.find_evaluation(candidate=sha, problem=problem.id, run_id=runs[1]) is None
    assert store.find_evaluation(candidate=sha, problem=problem.id).id == search
    assert store.find_evaluation(candidate=sha, problem=problem.id, environment="other") is None
    assert store.find_evaluation(candidate=sha, problem=problem.id, control=True) is None
    assert store.find_evaluation(candidate=sha, problem=problem.id, confirmed=True) is None


@pytest.mark.parametrize(
    "end", [{"confirmed": True}, {"status": Status.QUARANTINED, "failed_stage": "confirm"}], ids=["stood", "refused"]
)
def test_a_resume_finds_a_confirmation_whatever_its_end(store, make, end):
    search = store.record_evaluation(make.evaluation())
    confirmation = store.record_evaluation(make.evaluation(**end))
    key = {"candidate": make.candidate().sha256, "problem": SOFTMAX}
    assert store.find_evaluation(**key, confirmed=True).id == confirmation
    assert store.find_evaluation(**key, confirmed=False).id == search
    assert store.find_evaluation(**key).id == confirmation
    store.quarantine(confirmation, "void")
    assert store.find_evaluation(**key).id == search


def test_evaluations_are_narrowed_by_each_argument(store, make):
    problem = make.problem()
    run_id = store.create_run(RunConfig(problems=(problem.id,)), [problem])
    a = store.record_evaluation(make.evaluation("a"), run_id=run_id)
    b = store.record_evaluation(make.evaluation("b", status=Status.TIMEOUT))

    def ids(**arguments):
        return [item.id for item in store.evaluations(**arguments)]

    assert ids() == [a, b]
    assert ids(newest_first=True, limit=1) == [b]
    assert ids(before=b) == [found for found in ids() if found < b]
    assert ids(before=min(ids())) == []
    assert ids(run_id=run_id) == ids(passed=True) == ids(candidate=make.candidate("a").sha256) == [a]
    assert ids(passed=False) == [b]
    assert ids(problem="other") == ids(control=True) == ids(environment="other") == []
    store.record_problem(make.problem(source="new"))
    assert ids(current_only=True) == []


def test_a_run_keeps_to_the_versions_it_began_with(store, make):
    old = make.problem()
    run_id = store.create_run(RunConfig(problems=(old.id,)), [old])
    store.record_problem(make.problem(source="new"))
    assert store.run_problems(run_id) == [old]
    store.record_evaluation(make.evaluation("a"), run_id=run_id)
    sha = make.candidate("a").sha256
    assert store.best() == []
    assert store.find_evaluation(candidate=sha, problem=old.id, run_id=run_id) is not None
    assert store.find_evaluation(candidate=sha, problem=old.id) is None


def test_runs_change_and_remember_their_configuration(store, make):
    problems: list[Problem] = [make.problem(name) for name in ("softmax", "relu", "gelu")]
    config = RunConfig(
        problems=tuple(p.id for p in problems), max_minutes=2.5, settings={"looks": [1, 2], "path": None}
    )
    run_id = store.create_run(config, problems)
    run = store.run(run_id)
    assert (run.id, run.config, run.status, run.seconds) == (run_id, config, "running", 0)
    assert store.run(run_id[:20].lower()).id == run_id
    store.set_run_status(run_id, "interrupted")
    assert store.add_run_seconds(run_id, 2.0) == 2.0
    assert store.add_run_seconds(run_id, 0.5) == 2.5
    assert store.run(run_id).status == "interrupted"
    store.set_problem_state(run_id, problems[1].id, "done", "won")
    assert [(s.problem, s.state, s.detail) for s in store.problem_states(run_id)] == [
        (problems[0].id, "pending", ""),
        (problems[1].id, "done", "won"),
        (problems[2].id, "pending", ""),
    ]


def test_unknown_runs_and_states_are_usage_errors(store, make):
    run_id = store.create_run(RunConfig(problems=("p",)), [make.problem()])
    second = store.create_run(RunConfig(problems=("p",)), [])
    assert [run.id for run in store.runs()] == [second, run_id]
    assert [run.id for run in store.runs(limit=1)] == [second]
    with pytest.raises(UsageError, match="several"):
        store.run(run_id[0])
    for missing in ("nothing", "", "%"):
        with pytest.raises(UsageError, match="no run"):
            store.run(missing)
    for failing in (
        lambda: store.set_run_status("nothing", "failed"),
        lambda: store.set_run_status(run_id, "sleeping"),
        lambda: store.add_run_seconds("nothing", 1.0),
        lambda: store.run_costs("nothing"),
        lambda: store.set_problem_state(run_id, "nothing", "done"),
        lambda: store.set_problem_state(run_id, SOFTMAX, "asleep"),
    ):
        with pytest.raises(UsageError):
            failing()


def test_events_come_back_in_order(store, make):
    run_id = store.create_run(RunConfig(problems=("p",)), [])
    first = store.event(run_id, "started", {"pid": 3, "nan": float("nan")})
    second = store.event(run_id, "ended")
    outside = store.event(None, "machine fault", {"x": [1]})
    assert first < second < outside
    assert [(e.kind, dict(e.data)) for e in store.events(run_id)] == [
        ("started", {"pid": 3, "nan": "NaN"}),
        ("ended", {}),
    ]
    assert [e.id for e in store.events(run_id, after=first)] == [second]
    assert [e.id for e in store.events(run_id, kind="started")] == [first]
    assert [e.id for e in store.events(None)] == [outside]
