"""What a submission leaves: really timed, stored, ranked, and found again."""

from __future__ import annotations

import pytest

from kernelwright.records import Verdict
from kernelwright.store import Store


@pytest.fixture(scope="module")
def submitted(agent, right):
    """Two kernels that are right, the second made from the first, and one that is wrong."""
    first = agent.call("submit", problem="rectifier.py", source=right, note="plain loop")
    parent = first["verdict"]["candidate"]
    variant = right.replace("n; i++)", "n; ++i)")
    second = agent.call("submit", problem="rectifier.py", source=variant, parent=parent[:12])
    wrong = right.replace("? x[i] : 0", "? x[i] : 1")
    return first, second, agent.call("submit", problem="rectifier.py", source=wrong)


def test_a_submission_is_timed_stored_and_ranked(submitted, folder):
    first, second, wrong = submitted
    for answer in (first, second):
        verdict = Verdict.model_validate(answer["verdict"])
        assert verdict.passed
        assert verdict.stage == "timed"
        assert verdict.timing.speedup["eager"].low > 0
    assert first["rank"] == {"baseline": "eager", "rank": 1, "of": 1}
    assert second["rank"]["of"] == 2
    assert second["rank"]["rank"] in (1, 2)
    assert wrong["verdict"]["status"] == "INCORRECT_NUMERICAL"
    assert wrong["rank"] is None
    with Store.open(folder / "store.db", readonly=True) as store:
        stored = store.evaluation(second["evaluation"])
    assert stored.candidate.author == "mcp:test-agent"
    assert stored.evaluation.samples
    assert stored.verdict == Verdict.model_validate(second["verdict"])


def test_the_best_one_comes_with_its_source(agent, submitted, right):
    kernels = agent.call("best", problem="rectifier.py")["kernels"]
    ranked = {answer["rank"]["rank"]: answer for answer in submitted if answer["rank"]}
    leader = submitted[0] if submitted[1]["rank"]["rank"] == 2 else ranked[1]
    assert [row["candidate"] for row in kernels] == [leader["verdict"]["candidate"]]
    assert "class ModelNew" in kernels[0]["source"]
    assert kernels[0]["confirmed"] is False
    assert kernels[0]["speedup"] == leader["verdict"]["timing"]["speedup"]["eager"]
    assert "source" not in agent.call("best", with_source=False)["kernels"][0]


def test_history_has_what_was_tried_newest_first(agent, submitted):
    first, second, wrong = submitted
    rows = agent.call("history", problem="rectifier.py")["evaluations"]
    assert [row["evaluation"] for row in rows] == [answer["evaluation"] for answer in (wrong, second, first)]
    assert rows[1]["parents"] == [first["verdict"]["candidate"]]
    assert rows[2]["note"] == "plain loop"
    assert rows[0]["status"] == "INCORRECT_NUMERICAL"
    assert rows[0]["reason"]
    assert rows[0]["speedup"] == {}
    assert rows[1]["speedup"] == second["verdict"]["timing"]["speedup"]
    assert len(agent.call("history", problem="rectifier.py", limit=1)["evaluations"]) == 1


def test_a_profile_is_of_exactly_the_kernel_that_was_named(agent, submitted):
    wanted = submitted[1]["verdict"]["candidate"]
    data = agent.call("profile", problem="rectifier.py", candidate=wanted[:12])
    assert data["candidate"] == wanted
    assert data["timing"]["confirmed"] is False
    assert data["stage"] == "timed"
    assert data["profile"]["metrics"]
    assert data["profile"]["notes"]
    assert len(agent.call("history", problem="rectifier.py")["evaluations"]) == 3  # a profile keeps nothing
