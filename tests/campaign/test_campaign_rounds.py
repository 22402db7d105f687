"""A run told round by round."""

from __future__ import annotations

import math

import pytest
from campaign_fakes import FakeReferee, make_problem, register_scripted_roles

from kernelwright.campaign import Campaign
from kernelwright.campaign.rounds import rounds_of
from kernelwright.config import Settings
from kernelwright.records import Status
from kernelwright.store import Store


@pytest.fixture
def told(tmp_path):
    """The rounds of a run over two problems; a kernel is named after its round."""
    register_scripted_roles()

    def run(**table):
        settings = Settings(
            store=tmp_path / "store.db", cache_dir=tmp_path, coder="scripted", judge="scripted", rounds=3
        )
        with Store.open(settings.store) as store:
            referee = FakeReferee(**table)
            result = Campaign(settings, store, open_referee=lambda _: referee).run(
                [make_problem("a"), make_problem("b")]
            )
            return rounds_of(store, result.run_id)

    return run


def test_the_best_so_far_counts_and_not_the_latest(told):
    rounds = told(speedups={"v0": 1.5, "v1": 4.0, "v2": 2.0})
    assert [after.round for after in rounds] == [1, 2, 3]
    assert [after.mean["eager"] for after in rounds] == pytest.approx([1.5, 4.0, 4.0])
    assert [after.faster["eager"] for after in rounds] == [2, 2, 2]
    assert {(after.judged, after.passed, after.solved, after.problems) for after in rounds} == {(2, 2, 2, 2)}


def test_a_problem_without_a_kernel_counts_as_one(told):
    rounds = told(speedups={"v1": 0.5, "v2": 4.0}, statuses={"v0": Status.COMPILE_ERROR})
    assert [(after.passed, after.solved) for after in rounds] == [(0, 0), (2, 2), (2, 2)]
    assert [after.mean["eager"] for after in rounds] == pytest.approx([1.0, 0.5, 4.0])
    assert [after.faster["eager"] for after in rounds] == [0, 0, 2]
    assert rounds[2].mean["compile"] == pytest.approx(math.exp(math.log(1.2)))
