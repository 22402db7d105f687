"""Runs over several shape variants of one problem: a search, a winner and an archive for each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from campaign_fakes import REFERENCE, FakeReferee, make_problem, register_scripted_roles

from kernelwright.campaign import Campaign, evaluate, searches_of
from kernelwright.campaign.runs import problems_of
from kernelwright.campaign.searched import make_search
from kernelwright.campaign.variants import at_variants
from kernelwright.config import Settings
from kernelwright.errors import UsageError
from kernelwright.records import ProblemMeta
from kernelwright.store import Store

META = ProblemMeta(variants={"cpu": ({"N": 8}, {"N": 3}, {"N": 1}), "interpreter": ({"N": 4},)})
PROBLEM = make_problem("one").model_copy(update={"meta": META})
FIRST, SECOND, THIRD = (PROBLEM.at_variant(number) for number in range(3))
SPEEDUPS = {"v0": 1.1, "v1": 2.0, "v2": 1.5}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    register_scripted_roles()
    return Settings(
        store=tmp_path / "store.db", cache_dir=tmp_path / "cache", coder="scripted", judge="scripted", rounds=3
    )


@pytest.fixture
def store(settings: Settings):
    with Store.open(settings.store) as opened:
        yield opened


def campaign(settings, store, referee, **more) -> Campaign:
    return Campaign(settings, store, open_referee=lambda _: referee, **more)


def test_every_variant_has_its_own_winner_and_archive(settings, store):
    result = campaign(settings, store, FakeReferee(SPEEDUPS)).run([FIRST, SECOND])
    assert [row.problem for row in result.rows] == [PROBLEM.id, f"{PROBLEM.id}@1"]
    assert [row.variant.inputs for row in result.rows] == [("x float32[8]",), ("x float32[3]",)]
    assert [store.candidate(row.candidate).problem_id for row in result.rows] == [FIRST.id, SECOND.id]
    assert {(row.problem, row.candidate) for row in store.best()} == {
        (row.problem, row.candidate) for row in result.rows
    }
    views = searches_of(store, store.run(result.run_id))
    assert [(view.problem, view.passed) for view in views] == [(FIRST.id, 3), (SECOND.id, 3)]
    kernels = [{elite.kernel for island in view.islands for elite in island.elites} for view in views]
    assert all(kernels)
    assert not kernels[0] & kernels[1]


def test_searches_on_two_variants_draw_differently(settings, store):
    result = campaign(settings, store, FakeReferee(SPEEDUPS)).run([FIRST, SECOND])
    config = store.run(result.run_id).config
    seeds = [make_search(config, problem.id).told([]).ask(0)[0].seed for problem in (FIRST, SECOND, FIRST)]
    assert seeds[0] == seeds[2] != seeds[1]


def test_a_resume_goes_on_with_the_variant_that_was_left(settings, store):
    def stop(point: str) -> None:
        if point.startswith("open") and len(store.evaluations()) == 4:
            store.set_run_status(store.runs()[0].id, "paused")

    stopped = campaign(settings, store, FakeReferee(SPEEDUPS, point=stop)).run([FIRST, SECOND])
    assert stopped.status == "paused"
    assert problems_of(store, stopped.run_id) == (FIRST, SECOND)
    referee = FakeReferee(SPEEDUPS)
    resumed = campaign(settings, store, referee).resume(stopped.run_id)
    assert resumed.all_won
    assert [row.problem for row in resumed.rows] == [FIRST.id, SECOND.id]
    by_problem = [len(store.evaluations(run_id=stopped.run_id, problem=one.id)) for one in (FIRST, SECOND)]
    assert by_problem == [4, 4]


def test_of_all_variants_those_too_small_to_time_are_left_alone(settings, store):
    told = []
    weaknesses = {SECOND.id: ["tiny-output"], THIRD.id: ["too-small"], FIRST.id: ["too-small"]}
    referee = FakeReferee(SPEEDUPS, weaknesses=weaknesses)
    every = at_variants([PROBLEM], "all", settings)
    assert every == (FIRST, SECOND, THIRD)
    result = campaign(settings, store, referee, tell=told.append).run(every, every_variant=True)
    assert [(row.state, row.skipped, row.candidate is None) for row in result.rows] == [
        ("done", False, False),
        ("done", False, False),
        ("done", True, True),
    ]
    assert result.rows[2].reason == "left alone: too-small!"
    assert result.all_won
    assert store.evaluations(problem=THIRD.id) == []
    assert any("--variant 2 searches it all the same" in event.data.get("text", "") for event in told)
    alone = campaign(settings, store, FakeReferee(SPEEDUPS)).run([THIRD])
    assert alone.rows[0].candidate is not None


@pytest.mark.parametrize(
    ("wanted", "number"), [(0, 0), ("2", 2), ("N=3", 1), (" N=1 ", 2)], ids=["number", "text", "name", "spaces"]
)
def test_a_variant_is_named_by_number_or_by_what_it_sets(settings, wanted, number):
    assert at_variants([PROBLEM], wanted, settings) == (PROBLEM.at_variant(number),)


@pytest.mark.parametrize(
    ("problem", "wanted", "backend", "message"),
    [
        (PROBLEM, "3", "cpp", r"no cpu variant 3.*0: N=8; 1: N=3; 2: N=1"),
        (PROBLEM, "N=5", "cpp", "no cpu variant N=5"),
        (PROBLEM, "M=3", "cpp", "no cpu variant M=3"),
        (PROBLEM, "-1", "cpp", "no cpu variant -1"),
        (PROBLEM, "1", "triton", "no interpreter variant 1"),
        (SECOND, "1", "cpp", "names its variant already"),
        (make_problem(), "1", "cpp", "no cpu variant 1.*0: the constants of the file"),
    ],
)
def test_variants_that_are_not_there(settings, problem, wanted, backend, message):
    with pytest.raises(UsageError) as caught:
        at_variants([problem], wanted, settings.with_values(backend=backend, device="none"))
    assert re.search(message, f"{caught.value.message} {caught.value.hint}")


def test_evaluating_on_a_variant_keeps_its_verdict_with_that_variant(settings, store):
    evaluation = evaluate(
        "v1\n", PROBLEM, settings=settings, variant="N=3", store=store, open_referee=lambda _: FakeReferee(SPEEDUPS)
    )
    assert evaluation.candidate.problem_id == evaluation.verdict.problem == SECOND.id
    assert evaluation.verdict.variant.describe() == "x float32[3] (variant 1: N=3)"
    assert [row.problem for row in store.best()] == [SECOND.id]
    assert REFERENCE in store.problem(SECOND.id).source
