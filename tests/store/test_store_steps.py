"""States of unfinished steps: saved entry by entry, read whole, gone with their problem."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelwright.records import RunConfig
from kernelwright.store import Store

STATE = {"round": 1, "stop": "", "attempts": [{"round": 0}, {"round": 1}], "proposals": [], "text": "a \ud800 b"}


@pytest.fixture
def run(store, make):
    problem = make.problem()
    return store.create_run(RunConfig(problems=(problem.id,)), [problem]), problem.id


def test_a_state_is_read_as_it_was_saved(store, run):
    assert store.step(*run) is None
    store.save_step(*run, STATE)
    assert store.step(*run) == STATE
    assert store.step(run[0], "another") is None
    with Store.open(store.path) as other:
        assert other.step(*run) == STATE


def test_only_what_is_new_in_a_list_is_written(store, run):
    grown = {**STATE, "attempts": [*STATE["attempts"], {"round": 2}], "proposals": [1]}
    store.save_step(*run, STATE)
    spoilt = {**STATE, "attempts": [{"round": "spoilt"}, *STATE["attempts"][1:]]}
    store.save_step(*run, spoilt)
    store.save_step(*run, grown, known=STATE)
    assert store.step(*run)["attempts"] == [{"round": "spoilt"}, {"round": 1}, {"round": 2}]
    store.save_step(*run, {**grown, "attempts": grown["attempts"][:1], "proposals": []}, known=grown)
    assert (store.step(*run)["attempts"], store.step(*run)["proposals"]) == ([{"round": "spoilt"}], [])


@given(st.lists(st.dictionaries(st.sampled_from("ab"), st.lists(st.integers(0, 3), max_size=4)), max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_states_one_after_the_other(store, run, states):
    known = {}
    for state in states:
        store.save_step(*run, state, known=known)
        known = state
        assert store.step(*run) == state


@pytest.mark.parametrize(("state", "left"), [("running", STATE), ("failed", STATE), ("done", None)])
def test_the_state_goes_when_the_problem_is_done(store, run, state, left):
    store.save_step(*run, STATE)
    store.set_problem_state(*run, state)
    assert store.step(*run) == left


def test_the_state_of_a_run_goes_when_the_run_is_pruned(store, run):
    store.save_step(*run, STATE)
    store.set_run_status(run[0], "cancelled")
    store.prune("9999", ("runs",))
    assert store.runs() == []
    assert store.check().ok
